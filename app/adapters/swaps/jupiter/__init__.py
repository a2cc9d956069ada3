"""Swaps on Solana: Jupiter finds the route, and everything but its one route instruction is written here.

Nothing of Jupiter's response is signed before it is decoded; what cannot be decoded is refused.
"""
