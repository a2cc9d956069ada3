"""Database plumbing: units of work, column types, locks, leases and batching."""
