"""Counters in a real Redis: concurrent processes lose no counts, and an outage costs nothing but figures."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from redis import Redis

from app.adapters.redis_stores import RedisCounterStore
from tests.support.applications import DEAD_REDIS

pytestmark = pytest.mark.redis


@pytest.fixture
def empty_redis(redis_url: str) -> Iterator[str]:
    """The Redis of this process, without what other tests counted; and for them, without the series of this one."""
    with Redis.from_url(redis_url) as redis:
        redis.flushall()
        yield redis_url
        redis.flushall()


def test_concurrent_additions_are_not_lost(empty_redis: str) -> None:
    def add() -> None:
        sums = RedisCounterStore(empty_redis)
        for _ in range(50):
            assert sums.add({"requests\troute=/a": 1, "rpc_seconds\tchain=base\tsum": 7})

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert RedisCounterStore(empty_redis).totals() == {"requests\troute=/a": 200, "rpc_seconds\tchain=base\tsum": 1400}


def test_an_absent_redis_stores_nothing_and_raises_nothing() -> None:
    sums = RedisCounterStore(DEAD_REDIS)
    assert not sums.add({"requests": 1})
    assert sums.totals() is None
    assert "127.0.0.1" not in repr(sums)
