"""Counters in one Redis hash. Losing it resets them, which Prometheus treats as a restart."""

from collections.abc import Mapping

from redis import Redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from app.db.unit_of_work import assert_no_unit

# A release that counts something else under an old name uses another key.
_KEY = "purser:counters:1"
_TIMEOUT_SECONDS = 0.25
_MAX_SERIES = 50_000


class RedisCounterStore:
    """Connects on first use, separately in each process."""

    def __init__(self, redis_url: str) -> None:
        self._redis = Redis.from_url(
            redis_url, socket_connect_timeout=_TIMEOUT_SECONDS, socket_timeout=_TIMEOUT_SECONDS,
            retry=Retry(NoBackoff(), 0), decode_responses=True,
        )  # fmt: skip

    def __repr__(self) -> str:
        return "RedisCounterStore()"

    def add(self, counts: Mapping[str, float]) -> bool:
        """Add counts in one transaction; return whether they were stored. A lost response may count twice."""
        assert_no_unit()
        if not counts:
            return True
        try:
            if int(self._redis.hlen(_KEY)) > _MAX_SERIES:
                self._redis.delete(_KEY)
            with self._redis.pipeline(transaction=True) as pipeline:
                for series, amount in counts.items():
                    pipeline.hincrbyfloat(_KEY, series, amount)
                pipeline.execute()
        except RedisError:
            return False
        return True

    def totals(self) -> Mapping[str, float] | None:
        assert_no_unit()
        try:
            found: Mapping[str, str] = self._redis.hgetall(_KEY)  # type: ignore[assignment] # as above
        except RedisError:
            return None
        return {series: float(amount) for series, amount in found.items()}
