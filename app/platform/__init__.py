"""Administration with master keys: agents, their keys, controls and credits, fleets, and the trail of it all.

Alone writes `audit_entries` and `audit_heads`. Whatever an operator does or is shown of keys leaves an entry in the
unit that does it; no secret is ever in one.
"""
