"""Administration with master keys: agents, keys, controls, credits, fleets, and the audit log.

Whatever an operator changes, or sees of keys, is recorded in the audit log in the same unit; no entry has a secret.
"""
