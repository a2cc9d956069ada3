"""Tallies in a real Redis: processes that add at once lose nothing, and an outage costs nothing but figures."""

from __future__ import annotations

import threading

import pytest
from redis import Redis

from app.adapters.tallies_redis import RedisTallies
from tests.support.applications import DEAD_REDIS

pytestmark = pytest.mark.redis


def test_what_is_added_at_once_adds_up(redis_url: str) -> None:
    Redis.from_url(redis_url).delete("purser:tallies:1")

    def add() -> None:
        sums = RedisTallies(redis_url)
        for _ in range(50):
            assert sums.add({"requests\troute=/a": 1, "rpc_seconds\tchain=base\tsum": 7})

    threads = [threading.Thread(target=add) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert RedisTallies(redis_url).totals() == {
        "requests\troute=/a": 200,
        "rpc_seconds\tchain=base\tsum": 1400,
    }


def test_a_redis_that_is_away_takes_nothing_and_breaks_nothing() -> None:
    sums = RedisTallies(DEAD_REDIS)
    assert not sums.add({"requests": 1})
    assert sums.totals() is None
    assert "127.0.0.1" not in repr(sums)
