"""Swaps on Ethereum and Base: Uniswap V3's own contracts, without anybody's server in between.

Never approves anything: USDC is let go of by a permit (EIP-2612) for this amount, inside the swap's transaction.
"""
