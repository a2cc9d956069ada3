"""Administration with master keys: agents, keys, controls, credits, fleets, and the audit log.

The only writer of `audit_entries` and `audit_heads`. Whatever an operator changes, or sees of keys, is recorded in
the same unit; no entry contains a secret.
"""
