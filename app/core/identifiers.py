"""Identifiers and secrets that we make: UUIDs for rows, 256-bit keys with a prefix that names their kind."""

from __future__ import annotations

import hashlib
import secrets
import uuid

_UUID_LETTERS = 36


def new_id() -> str:
    """Return a fresh random UUID as text."""
    return str(uuid.uuid4())


def parse_id(text: object) -> str | None:
    """Return the text if it is a UUID in canonical form, else None: one resource has one name."""
    if not isinstance(text, str) or len(text) != _UUID_LETTERS:
        return None
    try:
        return text if str(uuid.UUID(text)) == text else None
    except ValueError:
        return None


def new_key(prefix: str) -> str:
    """Return a fresh key of 256 random bits such as `ak_…`."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def digest(key: str) -> str:
    """Return the SHA-256 by which a key is found; with 256 random bits it needs neither salt nor stretching."""
    return hashlib.sha256(key.encode()).hexdigest()
