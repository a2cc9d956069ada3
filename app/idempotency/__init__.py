"""Idempotency keys: a repeated request gets the first response and changes nothing."""
