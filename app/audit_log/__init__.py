"""The audit log: a hash chain of administrative acts."""
