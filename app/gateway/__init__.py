"""The gateway: metered forwarding of calls to upstream providers with the operator's credentials.

A call is validated, quoted, paid for, forwarded and settled (`call`). What is particular to a provider is in its row of
the provider table and nowhere else. This package has no database tables.
"""
