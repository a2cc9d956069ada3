"""Limits on concurrent forwarded calls: one permit per call, with quotas for what the call goes to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from app.errors import Overloaded
from server.client_socket import ClientSocket
from server.pool import ResourcePool, ResourceUse

_MIN_QUOTA = 4
_RETRY_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Quota:
    """A bound of one n-th of all permits for the calls that share a key, even while others are unused."""

    key: str
    divisor: int
    description: str
    """What the calls have in common, to complete the message "Too many calls … are being forwarded."."""


class ConcurrencyLimiter:
    """Limits how many calls a process forwards at a time, within its thread pool."""

    def __init__(self, threads: ResourcePool) -> None:
        self._pool = threads
        self._capacity = threads.capacity(ResourceUse.UPSTREAM)
        self._used: Counter[str] = Counter()
        self._lock = threading.Lock()

    def acquire(self, account_id: str, quotas: Collection[Quota]) -> Permit:
        """Return a permit. Raises: Overloaded when all are taken, or all that a quota allows."""
        with self._lock:
            for quota in quotas:
                # Where there are few permits at all, a quota is at least a handful.
                if self._used[quota.key] >= max(_MIN_QUOTA, self._capacity // quota.divisor):
                    raise _overloaded(f" {quota.description}")
            if not self._pool.acquire(ResourceUse.UPSTREAM, account_id):
                raise _overloaded("")
            for quota in quotas:
                self._used[quota.key] += 1
        return Permit(self, account_id, quotas)

    def release(self, account_id: str, quotas: Collection[Quota]) -> None:
        with self._lock:
            self._pool.release(ResourceUse.UPSTREAM, account_id)
            for quota in quotas:
                self._used[quota.key] -= 1
                if not self._used[quota.key]:
                    del self._used[quota.key]


class Permit:
    """The right to forward one call; released on every way out."""

    def __init__(self, limiter: ConcurrencyLimiter, account_id: str, quotas: Collection[Quota]) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self._account_id = account_id
        self._quotas = quotas
        self._connection: ClientSocket | None = None

    @property
    def is_held(self) -> bool:
        return self._limiter is not None

    def transfer_to(self, connection: ClientSocket) -> None:
        """Let a connection hold it until the response is written, which takes the same thread."""
        self._connection = connection
        connection.attach_permit(self)

    def set_write_deadline(self, deadline_ns: int) -> None:
        """Bound the time for writing the response, if a connection holds the permit (ns of the monotonic clock)."""
        if self._connection is not None:
            self._connection.set_write_deadline(deadline_ns)

    def release(self) -> None:
        """Release it. May be repeated."""
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.release(self._account_id, self._quotas)

    def release_after_response(self) -> None:
        """Release it once the response is written: the connection does so; without one, immediately."""
        if self._connection is None:
            self.release()


def _overloaded(description: str) -> Overloaded:
    return Overloaded(f"Too many calls{description} are being forwarded.", retry_after_seconds=_RETRY_SECONDS)
