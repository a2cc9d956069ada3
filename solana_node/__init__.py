"""A local Solana cluster: real programs executed by LiteSVM, behind Solana's JSON-RPC.

LiteSVM only executes. This package adds slots, blockhashes that expire, commitment levels, a history, subscriptions,
faults on demand, and a state file. It is not safe to expose: the faucet's key is public.
"""

from solana_node.addresses import USDC_MINT
from solana_node.errors import RpcError
from solana_node.node import SolanaNode

__all__ = ["USDC_MINT", "RpcError", "SolanaNode"]
