"""Wallets: custody, balances, movements, funding and history.

Alone writes: wallets, wallet_keys, key_store, retired_keys, transactions, transaction_events, signed_attempts, nonces,
funding_deposits, funding_allocations, deposit_cursors, deposit_marks.
Never sends anything that was not committed first.
"""
