"""Authentication: agents, their keys, master and owner keys, and the guards of blueprints.

Only this package writes `agents`, `api_keys`, `master_keys` and `owner_keys`; it does not depend on credits, wallets or
claims.
"""
