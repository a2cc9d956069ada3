"""Purser: an agent wallet and API gateway.

`docs/architecture.md` describes the packages and the direction of imports.
"""
