"""Wallets: custody, balances, movements, funding and history.

The only writer of the tables of `core.models`. Nothing is broadcast before it is committed.
"""
