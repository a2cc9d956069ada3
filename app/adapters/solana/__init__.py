"""Solana over JSON-RPC: typed requests of solders, our own transport, several endpoints behind it."""
