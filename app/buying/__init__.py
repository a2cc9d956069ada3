"""Buying from web services that ask for payments by x402 or MPP: a wallet pays once, under its limits.

Each payment is a movement of the wallet; what it bought where is in this package.
"""
