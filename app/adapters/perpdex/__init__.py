"""Hyperliquid, the perpetual-futures exchange: asking its `/info`, and building what its `/exchange` takes.

Source: Hyperliquid's documentation ("Info endpoint", "Exchange endpoint", "Rate limits", "Tick and lot size",
"Asset IDs") and its Python SDK 0.24. Nothing here signs or sends an action.
"""
