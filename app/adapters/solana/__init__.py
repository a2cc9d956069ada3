"""Solana behind the `Chain` port: JSON-RPC with solders' typed requests, our own transport, several endpoints."""
