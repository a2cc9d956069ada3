"""Who is calling: agents, their keys, master and owner keys, and the guards at the doors.

Alone writes `agents`, `api_keys`, `master_keys` and `owner_keys`; knows nothing of credits,
wallets or claims.
"""
