"""Pools of what a process has little of: threads that wait, and memory for request bodies.

One pool covers all threads that wait (for clients, upstreams, chains, shops): separate limits would add up to more
threads than there are. The threads outside the pool serve requests that wait for nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from fractions import Fraction

ANONYMOUS = ""
"""The one account of all requests without a key, which cannot be distinguished."""

# Threads that forward no call; half of all if there are few. Some are never handed out, the others are reserved.
_NON_FORWARDING_THREADS = 100
_RESERVED_PER_SMALL_USE = 20
_DYNAMIC_THRESHOLD_ALPHA = 4


class ResourceUse(StrEnum):
    """What part of a pool is used for."""

    ANONYMOUS_CLIENT = "anonymous_client"
    """A thread that waits for an anonymous client to send or to read."""
    AUTHENTICATED_CLIENT = "authenticated_client"
    """A thread that waits for an authenticated client to send or to read."""
    UPSTREAM = "upstream"
    """A thread that forwards a call, and waits for its client to read the response."""
    OUTCOME = "outcome"
    """A thread that waits for a chain, a shop or a specification, because the client prefers to wait."""
    BODY = "body"
    """Bytes of a request body in memory."""


_SMALL_USES = (ResourceUse.ANONYMOUS_CLIENT, ResourceUse.AUTHENTICATED_CLIENT, ResourceUse.OUTCOME)


class ResourcePool:
    """A limited amount, part of it reserved for each use, the rest shared by dynamic thresholds per account."""

    def __init__(self, total: int, reserved: Mapping[ResourceUse, int]) -> None:
        self._reserved = {use: reserved.get(use, 0) for use in ResourceUse}
        self._shared = total - sum(self._reserved.values())
        self._used = dict.fromkeys(ResourceUse, 0)
        # What is left of the shared part; unused reservations come on top.
        self._left = self._shared
        self._used_by_account: Counter[tuple[ResourceUse, str]] = Counter()
        self._lock = threading.Lock()

    @classmethod
    def for_threads(cls, threads: int) -> ResourcePool:
        """Make the pool of the threads that may wait: for forwarding, all but a hundred, of few threads half.

        Of the others each small use has a fifth reserved, and two fifths are never handed out.
        """
        forwarding = max(threads - _NON_FORWARDING_THREADS, threads // 2, 1)
        reserved = min(_RESERVED_PER_SMALL_USE, forwarding // 5)
        return cls(
            forwarding + reserved * len(_SMALL_USES),
            {ResourceUse.UPSTREAM: forwarding // 2, **dict.fromkeys(_SMALL_USES, reserved)},
        )

    @classmethod
    def for_bodies(cls, megabytes: int = 96) -> ResourcePool:
        """Make the pool of a process's memory for bodies that are too large for the server's buffers."""
        total = megabytes * 2**20
        return cls(total, {ResourceUse.BODY: total})

    def capacity(self, use: ResourceUse) -> int:
        """Return how much one use may have while there is no other."""
        return self._shared + self._reserved[use]

    @property
    def used(self) -> Fraction:
        """Return the share of the pool that is in use."""
        return Fraction(sum(self._used.values()), self._shared + sum(self._reserved.values()))

    def acquire(self, use: ResourceUse, account_id: str, amount: int = 1) -> bool:
        """Take an amount for an account; return whether it was available.

        An account may hold at most four times what is then left (Choudhury and Hahne, 1998): the first at most four
        fifths of all, the next four fifths of the rest, and so on.
        """
        with self._lock:
            used, reserved = self._used[use], self._reserved[use]
            available = self._left + max(0, reserved - used)
            held = self._used_by_account[use, account_id]
            if amount > available or held + amount > _DYNAMIC_THRESHOLD_ALPHA * (available - amount + 1):
                return False
            self._set_used(use, used + amount)
            self._used_by_account[use, account_id] = held + amount
            return True

    def release(self, use: ResourceUse, account_id: str, amount: int = 1) -> None:
        """Return an amount to the pool."""
        with self._lock:
            self._set_used(use, self._used[use] - amount)
            self._used_by_account[use, account_id] -= amount
            if not self._used_by_account[use, account_id]:
                del self._used_by_account[use, account_id]

    @contextmanager
    def try_acquire(self, use: ResourceUse, account_id: str) -> Iterator[bool]:
        """Take one while the block runs; yield whether it was available."""
        acquired = self.acquire(use, account_id)
        try:
            yield acquired
        finally:
            if acquired:
                self.release(use, account_id)

    def _set_used(self, use: ResourceUse, amount: int) -> None:
        reserved = self._reserved[use]
        self._left += max(self._used[use], reserved) - max(amount, reserved)
        self._used[use] = amount
