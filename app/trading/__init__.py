"""The perpetual-futures exchange: queries, and previews of actions that are not sent.

Never signs or sends an action, and never counts one as spent.
The only writer of `exchange_budgets` and `exchange_markets`.
"""
