"""What can be bought here without an account, for those who look for it: lists in the formats of x402."""
