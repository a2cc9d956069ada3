"""Spending controls: what a wallet may move, decided by a pure policy and held under a lock on the wallet.

Alone writes `spending_accounts`, `spending_controls` and `spending_holds`. Knows nothing of chains, prices
or transactions: a movement is a reference and a value in nano-dollars.
"""
