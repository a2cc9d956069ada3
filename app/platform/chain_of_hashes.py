"""How entries are chained: pure. Each hash is an HMAC over the entry and the hash before it.

The key is not in the database in the clear, so who can only write there can neither change an entry nor cut the
end off without it showing.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

GENESIS = "0" * 64
KEY_BYTES = 32


def hash_of(key: bytes, previous: str, entry: Mapping[str, Any]) -> str:
    """Return the hash of an entry whose values are JSON's (instants as text, no float)."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return _mac(key, f"entry:{previous}:{text}")


def proof_of(key: bytes, number: int, end: str) -> str:
    """Return the word for the end of a chain of so many entries."""
    return _mac(key, f"head:{number}:{end}")


def same(one: str, other: str) -> bool:
    """Compare two hashes in constant time."""
    return hmac.compare_digest(one, other)


def _mac(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
