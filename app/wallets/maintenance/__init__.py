"""Audits, retention and reconciliation."""
