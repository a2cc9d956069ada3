"""Decentralised exchanges: Uniswap on EVM chains, Jupiter on Solana."""
