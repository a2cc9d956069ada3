"""Outgoing Solana transactions: fees, instructions, signing and broadcast."""
