"""Outgoing transactions: prepare, record, broadcast, settle; confirmation and replacement."""
