"""Approvals: payments that wait for the owner's decision, with their value held, and are then executed once."""
