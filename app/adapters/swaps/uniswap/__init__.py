"""Swaps on Ethereum and Base: Uniswap V3's own contracts, without an intermediate server.

Never approves anything: the router may take USDC by a permit (EIP-2612) for this amount, inside the swap's
transaction.
"""
