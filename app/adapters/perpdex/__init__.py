"""Hyperliquid, the perpetual-futures exchange: queries to its `/info`, and payloads for its `/exchange`.

Source: Hyperliquid's documentation ("Info endpoint", "Exchange endpoint", "Rate limits", "Tick and lot size", "Asset
IDs") and its Python SDK 0.24. Nothing here signs or sends an action.
"""
