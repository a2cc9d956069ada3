"""Claiming of agents by their owners: use cases, two JSON routes, and limits on guessing.

Only this package writes `guess_counters`. Unknown, malformed, expired and revoked codes get the same response.
"""
