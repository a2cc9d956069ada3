"""EVM chains behind the `Chain` port: JSON-RPC, EIP-1559 transactions, USDC, the OP stack's L1 data fee.

`chain` is the face; the verbs stand in `drafts`, `broadcasts`, `outcomes` and `deposits`, on top of `rpc`,
which alone talks to nodes. Nothing here keeps state that another process would need.
"""
