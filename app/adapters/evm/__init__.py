"""EVM chains behind the `Chain` port: JSON-RPC, EIP-1559 transactions, USDC, the OP stack's L1 data fee.

`chain` implements the port on top of `deposits`, `track` and `send`; only `calls` talks to nodes. Nothing here
keeps state that another process would need.
"""

from app.adapters.evm import encrypted_keyfiles

# Before any module below imports eth-account.
encrypted_keyfiles.leave_out()
