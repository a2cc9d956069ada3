"""Memory of the keys that were found valid in the last seconds, for calls with a step that checks the key again."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from app.identity.principal import Principal

_MICROSECOND = timedelta(microseconds=1)


class KeyMemory:
    """The principals of this process by the digest of their key. Thread-safe."""

    def __init__(self, *, lifetime: timedelta = timedelta(seconds=5), max_keys: int = 10_000) -> None:
        self._lifetime_ns = lifetime // _MICROSECOND * 1000
        self._max_keys = max_keys
        self._found: dict[str, tuple[int, Principal]] = {}
        self._lock = threading.Lock()

    def get(self, digest: str) -> Principal | None:
        """Return the principal of a key that was found in the last seconds."""
        until_ns, principal = self._found.get(digest, (0, None))
        return principal if time.monotonic_ns() < until_ns else None

    def add(self, digest: str, principal: Principal) -> None:
        """Remember a key that is valid now; if there are too many, forget the one that was found first."""
        with self._lock:
            self._found.pop(digest, None)
            if len(self._found) >= self._max_keys:
                del self._found[next(iter(self._found))]
            self._found[digest] = time.monotonic_ns() + self._lifetime_ns, principal

    def forget(self, key_id: str) -> None:
        with self._lock:
            for digest in [each for each, (_, found) in self._found.items() if found.key_id == key_id]:
                del self._found[digest]
