"""x402 payments for single calls: terms, headers, verification, settlement."""
