from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.capacity.single_flight_cache import SingleFlightCache
from app.errors import PerpdexError

SECOND = 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Source:
    """Counts loads; waits, fails or returns a value as configured."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = threading.Event()
        self.gate.set()
        self.failure: Exception | None = None

    def __call__(self) -> int:
        self.asked += 1
        assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        return self.asked


def test_fifty_concurrent_requests_cause_one_load() -> None:
    cache, source = SingleFlightCache(), Source()
    source.gate.clear()
    with ThreadPoolExecutor(50) as threads:
        answers = [threads.submit(cache.get, "mids", source, ttl_seconds=60) for _ in range(50)]
        source.gate.set()
        assert {answer.result(10) for answer in answers} == {1}
    assert source.asked == 1


def test_an_expired_value_is_not_returned() -> None:
    clock, source = Clock(), Source()
    cache = SingleFlightCache(clock)
    assert cache.get("mids", source, ttl_seconds=2) == 1
    clock.now = 2 * SECOND - 1
    assert cache.get("mids", source, ttl_seconds=2) == 1
    clock.now = 2 * SECOND
    assert cache.get("mids", source, ttl_seconds=2) == 2
    assert cache.get("book", source, ttl_seconds=2) == 3


def test_a_failure_is_cached_briefly_and_then_retried() -> None:
    clock, source = Clock(), Source()
    cache = SingleFlightCache(clock)
    source.failure = PerpdexError("away", retry_after_seconds=5)
    seen = []
    for _ in range(3):
        with pytest.raises(PerpdexError) as caught:
            cache.get("mids", source, ttl_seconds=60, failure_ttl_seconds=2)
        seen.append(caught.value)
    assert source.asked == 1
    assert len({id(failure) for failure in seen}) == 3
    assert seen[2].retry_after_seconds == 5
    clock.now = 2 * SECOND
    source.failure = None
    assert cache.get("mids", source, ttl_seconds=60) == 2


def test_a_defect_releases_waiting_threads_and_is_not_cached() -> None:
    cache, source = SingleFlightCache(), Source()
    source.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cache.get("mids", source, ttl_seconds=60)
    source.failure = None
    assert cache.get("mids", source, ttl_seconds=60) == 2


def test_unused_keys_are_evicted() -> None:
    clock, source = Clock(), Source()
    cache = SingleFlightCache(clock)
    for number in range(5000):
        clock.now += SECOND
        cache.get(number, source, ttl_seconds=1)
    assert len(cache._flights) <= 1000
