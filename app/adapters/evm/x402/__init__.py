"""The x402 facilitator for EVM chains (EIP-3009 authorizations)."""
