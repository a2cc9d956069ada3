"""The x402 facilitator for Solana (partially signed transfers)."""
