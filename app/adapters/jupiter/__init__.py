"""Swaps on Solana: Jupiter finds the way, and everything but its one route instruction is written here.

Nothing of what Jupiter answers is signed before it is read back; what cannot be read is refused.
"""
