"""A Solana cluster on this machine: real programs executed by LiteSVM behind the real JSON-RPC.

LiteSVM executes and nothing more. Here it gets slots that pass, blockhashes that expire, commitment
levels that each see their own past, a history, subscriptions, faults on demand, and a file that outlives
the process. Nothing here is safe to expose: the faucet's key is public.
"""

from sandbox.solana.addresses import USDC_MINT
from sandbox.solana.errors import RpcError
from sandbox.solana.node import SolanaNode

__all__ = ["USDC_MINT", "RpcError", "SolanaNode"]
