"""Read-only views: balances, history, pending movements."""
