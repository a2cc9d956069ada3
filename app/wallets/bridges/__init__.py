"""Bridges between chains, as a sequence of legs."""
