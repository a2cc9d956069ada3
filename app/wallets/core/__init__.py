"""Wallets, keys, nonces, and the state machine of movements."""
