"""Tallies in one Redis hash. Losing it starts the counters again, which Prometheus takes for a restart."""

from __future__ import annotations

from collections.abc import Mapping

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from app.core.unit_of_work import assert_no_unit

# A release that counts something else under an old name takes another key.
_KEY = "purser:tallies:1"
_TIMEOUT_SECONDS = 0.25
_MAX_SERIES = 50_000


class RedisTallies:
    """Connects on first use, in each process for itself."""

    def __init__(self, redis_url: str) -> None:
        """Take the URL, which may hold a password."""
        self._redis = Redis.from_url(
            redis_url,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0),
            decode_responses=True,
        )

    def __repr__(self) -> str:
        """Show nothing of the URL."""
        return "RedisTallies()"

    def add(self, counts: Mapping[str, int]) -> bool:
        """Add counts in one transaction; tell whether they were taken. A lost answer may count twice."""
        assert_no_unit()
        if not counts:
            return True
        try:
            if int(self._redis.hlen(_KEY)) > _MAX_SERIES:
                self._redis.delete(_KEY)
            with self._redis.pipeline(transaction=True) as pipeline:
                for series, amount in counts.items():
                    pipeline.hincrby(_KEY, series, amount)
                pipeline.execute()
        except RedisError:
            return False
        return True

    def totals(self) -> Mapping[str, int] | None:
        """Return all sums, or None while Redis is away."""
        assert_no_unit()
        try:
            found: Mapping[str, str] = self._redis.hgetall(_KEY)  # type: ignore[assignment] # likewise
        except RedisError:
            return None
        return {series: int(amount) for series, amount in found.items()}
