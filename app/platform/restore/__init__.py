"""Reconciliation after a database restore."""
