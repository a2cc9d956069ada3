"""Where a person claims an agent with its code: the verbs, two JSON routes, and limits on guessing.

Alone writes `guess_counters`. Never tells an unknown code from a malformed, expired or revoked one.
"""
