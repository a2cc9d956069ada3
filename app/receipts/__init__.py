"""Receipts of what is recorded: signed copies of records, for others than those who may read them."""
