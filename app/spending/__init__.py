"""Spending controls: limits and allowlists, decided by a pure policy, and holds placed under a lock on the wallet.

The only writer of `spending_accounts`, `spending_controls` and `spending_holds`. Independent of chains, prices and
transactions: a movement is a reference and a value in nano-dollars.
"""
