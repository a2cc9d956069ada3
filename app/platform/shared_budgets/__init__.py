"""Budgets that agents, keys and wallets share, and the further keys that operators make."""
