"""Limits of forwarded calls at a time, with quotas for what a call goes to, and of requests in moving windows.

Requests are counted in Redis; in this process's memory while Redis is unavailable or slow. Then each process grants its
part of a limit, so that they together grant no more than with Redis (but at least one request each); what Redis had
counted is not known to them, and what they counted is not known to Redis.

For a busy client, a process counts several requests in one round trip and grants them later: a lease. It is at most
1/100 of the limit and 1/8 of the client's requests to this process in the last second, and is dropped a second later.
So:

- In any window, the processes together grant at most the limit and, each, 1/100 of it less one.
- Of the requests that are counted, at most about 1/9 is never granted: a limit is reached at 8/9 of it or later.
- A limit below 200, and a client with fewer than 16 requests a second to a process, are counted one by one, exactly.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection
from contextlib import ExitStack
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TypeVar

import limits
import structlog
from limits.errors import StorageError
from limits.storage import MemoryStorage, RedisStorage, storage_from_string
from limits.strategies import MovingWindowRateLimiter

from app.core import clock
from app.errors import Overloaded, RateLimited
from server.client_socket import ClientSocket
from server.pool import ResourcePool, ResourceUse

_MIN_QUOTA = 4
_RETRY_SECONDS = 2
"""After a refusal, and between attempts to reach Redis again."""


@dataclass(frozen=True, slots=True)
class Quota:
    """A bound of one n-th of all permits for the calls that share a key, even while others are unused."""

    key: str
    divisor: int
    description: str
    """What the calls have in common, to complete the message "Too many calls … are being forwarded."."""


def quotas_of(kind: str, of: str, account_id: str) -> tuple[Quota, ...]:
    """Return quotas that keep permits for other kinds of calls, others of this kind and other callers if one hangs."""
    return (
        Quota(f"{kind}s", 2, f"to {kind}s"),
        Quota(f"{kind}:{of}", 4, f"to this {kind}"),
        Quota(f"account:{account_id}", 4, "from your account"),
    )


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
        return Permit(partial(self._release, account_id, quotas))

    def _release(self, account_id: str, quotas: Collection[Quota]) -> None:
        with self._lock:
            self._pool.release(ResourceUse.UPSTREAM, account_id)
            for quota in quotas:
                self._used[quota.key] -= 1
                if not self._used[quota.key]:
                    del self._used[quota.key]


class Permit:
    """The right to forward one call; closed on every way out."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release
        self._connection: ClientSocket | None = None

    @property
    def is_held(self) -> bool:
        return self._release is not None

    def transfer_to(self, connection: ClientSocket) -> None:
        """Let a connection hold it until the response is written, which takes the same thread."""
        self._connection = connection
        connection.attach_permit(self)

    def set_write_deadline(self, deadline_ns: int) -> None:
        """Bound the time for writing the response, if a connection holds the permit (ns of the monotonic clock)."""
        if self._connection is not None:
            self._connection.set_write_deadline(deadline_ns)

    def close(self) -> None:
        """Release it. May be repeated."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def release_after_response(self) -> None:
        """Release it once the response is written: the connection does so; without one, immediately."""
        if self._connection is None:
            self.close()


def _overloaded(description: str) -> Overloaded:
    return Overloaded(f"Too many calls{description} are being forwarded.", retry_after_seconds=_RETRY_SECONDS)


_log = structlog.get_logger(__name__)
_Result = TypeVar("_Result")
_TIMEOUT_SECONDS = 0.25
"""Between attempts to reach Redis again."""
_LEASES_PER_LIMIT = 100
_LEASES_PER_SECOND = 8
_LEASE_SECONDS = 1.0
_MAX_LEASES = 10_000
_MAX_WAITING = 32
"""The share of a process's threads for requests that wait."""
_MIN_DELAY_SECONDS = 0.01
# Agents choose the limits of their keys.
_remembered = lru_cache(maxsize=4096)


@dataclass(slots=True)
class _Lease:
    """Requests of one client that are counted and not yet granted, and how many were counted in about a second."""

    remaining: int = 0
    recent: float = 0.0
    counted_at: float = 0.0


class RateLimiter:
    """Counts requests by scope and client, for limits such as "5 per minute;60 per hour". Thread-safe."""

    def __init__(self, redis_url: str) -> None:
        self.processes = 1
        """Those that share the limits, if the server has set it: without Redis, each grants its part of them."""
        # The client of Valkey, which is not used, is imported as well if it is installed.
        RedisStorage.DEPENDENCIES.pop("valkey", None)
        timeouts = {"socket_connect_timeout": _TIMEOUT_SECONDS, "socket_timeout": _TIMEOUT_SECONDS}
        self._shared = MovingWindowRateLimiter(storage_from_string(redis_url, wrap_exceptions=True, **timeouts))
        self._local = MovingWindowRateLimiter(MemoryStorage())
        self._local_until = 0.0
        self._lock = threading.Lock()
        # One of the requests that wait counts, the others wait for it.
        self._places, self._first = threading.BoundedSemaphore(_MAX_WAITING), threading.Lock()
        # The least recently used is dropped first.
        self._leases: OrderedDict[tuple[limits.RateLimitItem, str, str], _Lease] = OrderedDict()

    def count(self, limit: str | None, scope: str, client: str) -> None:
        """Count a request. Raises: RateLimited, without counting it, if it exceeds one of the limits."""
        self._count(limit, scope, client, within_seconds=0)

    def count_when_permitted(self, limit: str, scope: str, client: str, within_seconds: float) -> None:
        """Count a request as soon as it exceeds none of the limits, in the order of those that wait here.

        Raises: RateLimited, without counting it, if that is not known to be within this time.
        """
        deadline = time.monotonic() + within_seconds
        with ExitStack() as leaving:
            if self._places.acquire(blocking=False):
                leaving.callback(self._places.release)
                if self._first.acquire(timeout=max(0.0, within_seconds)):
                    leaving.callback(self._first.release)
                    self._count(limit, scope, client, within_seconds=max(0.0, deadline - time.monotonic()))
                    return
        raise RateLimited(retry_after_seconds=math.ceil(max(1, within_seconds)))

    def spend(self, limit: str, scope: str, client: str, cost: int) -> None:
        """Count `cost` as one, such as a size. Raises: RateLimited, without counting it, if it exceeds a limit."""
        for item in _parse(limit):
            if not self._hit(item, scope, client, cost=cost):
                raise RateLimited(retry_after_seconds=self._delay(item, scope, client)[1])

    def check(self, limit: str | None, scope: str, client: str) -> None:
        """Check that another request would not exceed the limits. Raises: RateLimited."""
        for item in _parse(limit or ""):
            if not self._run(MovingWindowRateLimiter.test, item, client, scope):
                raise RateLimited(retry_after_seconds=self._delay(item, scope, client)[1])

    def _count(self, limit: str | None, scope: str, client: str, *, within_seconds: float) -> None:
        deadline = time.monotonic() + within_seconds
        for item in _parse(limit or ""):
            while not self._grant(item, scope, client):
                delay, whole_seconds = self._delay(item, scope, client)
                if time.monotonic() + delay >= deadline:
                    policy = {"RateLimit-Policy": f'"{scope}";q={item.amount};w={item.get_expiry()}'}
                    raise RateLimited(retry_after_seconds=whole_seconds, headers=policy)
                # Another process may take the place that becomes free: it is counted, not assumed.
                time.sleep(delay)

    def _grant(self, item: limits.RateLimitItem, scope: str, client: str) -> bool:
        max_size = item.amount // _LEASES_PER_LIMIT
        if max_size <= 1:
            return self._hit(item, scope, client)
        now = time.monotonic()
        with self._lock:
            lease = self._lease(item, scope, client)
            age = (now - lease.counted_at) / _LEASE_SECONDS
            if lease.remaining and age < 1:
                lease.remaining -= 1
                return True
            recent = lease.recent * max(0.0, 1 - age)
            # Other threads that come before this one has counted take a lease of one each.
            lease.remaining, lease.recent = 0, 0.0
        size = max(1, min(max_size, int(recent) // _LEASES_PER_SECOND))
        if not self._hit(item, scope, client, cost=size):
            if size == 1 or not self._hit(item, scope, client):
                return False
            size = 1
        with self._lock:
            lease.remaining = min(lease.remaining + size, max_size) - 1
            lease.recent += recent + size
            lease.counted_at = now
        return True

    def _lease(self, item: limits.RateLimitItem, scope: str, client: str) -> _Lease:
        key = (item, scope, client)
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease()
            if len(self._leases) > _MAX_LEASES:
                self._leases.popitem(last=False)
        self._leases.move_to_end(key)
        return lease

    def _hit(self, item: limits.RateLimitItem, scope: str, client: str, cost: int = 1) -> bool:
        return self._run(MovingWindowRateLimiter.hit, item, client, scope, cost=cost)

    def _delay(self, item: limits.RateLimitItem, scope: str, client: str) -> tuple[float, int]:
        """Return in how many seconds another request may be within a limit, exactly and for a client."""
        window = self._run(MovingWindowRateLimiter.get_window_stats, item, client, scope)
        seconds = window.reset_time - clock.now().timestamp()
        longest = item.get_expiry()
        return min(max(_MIN_DELAY_SECONDS, seconds), longest), min(max(1, math.ceil(seconds)), longest)

    def _run(
        self, operation: Callable[..., _Result], item: limits.RateLimitItem, *arguments: object, **options: object
    ) -> _Result:
        if time.monotonic() >= self._local_until:
            try:
                return operation(self._shared, item, *arguments, **options)
            except StorageError as error:
                self._local_until = time.monotonic() + _RETRY_SECONDS
                _log.warning("rate_limits_in_memory", reason=type(error.storage_error).__name__)
        return operation(self._local, _part_of(item, self.processes), *arguments, **options)


@_remembered
def _part_of(item: limits.RateLimitItem, processes: int) -> limits.RateLimitItem:
    """Return the part of a limit that one of several processes grants, at least one request."""
    return type(item)(max(1, item.amount // processes), item.multiples, item.namespace)


@_remembered
def _parse(limit: str) -> list[limits.RateLimitItem]:
    return sorted(limits.parse_many(limit)) if limit else []
