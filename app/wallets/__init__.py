"""Wallets: custody, balances, movements, funding and history.

The only writer of wallets, wallet_keys, key_store, retired_keys, transactions, transaction_events, signed_attempts,
nonces, bridges, funding_deposits, funding_allocations, deposit_cursors and deposit_marks.
Nothing is broadcast before it is committed.
"""
