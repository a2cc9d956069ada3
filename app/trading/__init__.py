"""The perpetual-futures exchange: reading it for agents, and showing what an order to it would be.

Never signs or sends an action, and never counts one as spent. Alone writes `exchange_budgets` and `exchange_markets`.
"""
