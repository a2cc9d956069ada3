"""HTTP plumbing without any feature: blueprints, parsing, wire fields, failures, idempotency and documentation."""
