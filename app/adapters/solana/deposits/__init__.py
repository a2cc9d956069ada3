"""Scanning of Solana accounts for incoming transfers."""
