"""Lists of what can be bought without an account, in the formats of x402."""
