"""Generated identifiers and secrets: UUIDs for rows, 256-bit keys with a prefix for their kind."""

import hashlib
import hmac
import os
import secrets
import time
import uuid
from collections import deque
from collections.abc import Iterable
from typing import TypeVar

_Found = TypeVar("_Found")
_UUID_CHARS = 36
_UUID_BYTES = 16
# A system call for each lets another thread take the interpreter.
_BATCH_SIZE = 64
_unused_ids: deque[str] = deque()
# Two processes must not have the same ids.
os.register_at_fork(after_in_child=_unused_ids.clear)


def new_id() -> str:
    try:
        return _unused_ids.pop()
    except IndexError:
        random = os.urandom(_BATCH_SIZE * _UUID_BYTES)
        first, *others = (_version_4(random[at : at + _UUID_BYTES]) for at in range(0, len(random), _UUID_BYTES))
        _unused_ids.extend(others)
        return first


def _version_4(random: bytes) -> str:
    # RFC 9562 §5.4. `uuid.UUID` takes several times as long.
    digits, variant = random.hex(), "89ab"[random[8] >> 4 & 3]
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"


def new_ordered_id() -> str:
    """Return an id that begins with the time, for rows that are dropped by month (RFC 9562 §5.7)."""
    time_digits, random = f"{time.time_ns() // 1_000_000:012x}", new_id()
    return f"{time_digits[:8]}-{time_digits[8:]}-7{random[15:]}"


def parse_id(text: object) -> str | None:
    """Return the text if it is a UUID in canonical form, otherwise None: a resource has one spelling of its id."""
    if not isinstance(text, str) or len(text) != _UUID_CHARS:
        return None
    try:
        return text if str(uuid.UUID(text)) == text else None
    except ValueError:
        return None


def require_id(text: object, missing: Exception) -> str:
    """Return the text if it is an id. Raises: `missing` otherwise."""
    return require(parse_id(text), missing)


def require(value: _Found | None, missing: Exception) -> _Found:
    """Return what was found. Raises: `missing` if it is None."""
    if value is None:
        raise missing
    return value


def new_key(prefix: str) -> str:
    """Return a random key of 256 bits such as `ak_…`."""
    return f"{prefix}_{secrets.token_urlsafe(32)}"


def digest(key: str) -> str:
    """Return the SHA-256 by which a key is found; with 256 random bits it needs neither salt nor stretching."""
    return hashlib.sha256(key.encode()).hexdigest()


def keyed_digests(purpose: str, message: bytes, secrets: Iterable[str]) -> list[bytes]:
    """Return the HMAC-SHA256 of a message under a key for each secret, derived for this purpose only."""
    keys = (hashlib.sha256(f"{purpose}{secret}".encode()).digest() for secret in secrets)
    return [hmac.new(key, message, hashlib.sha256).digest() for key in keys]
