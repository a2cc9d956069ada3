"""Transfers and withdrawals."""
