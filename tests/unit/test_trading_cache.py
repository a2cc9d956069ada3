from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from app.errors import PerpdexError
from app.trading.cache import Cache

SECOND = 10**9


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class Source:
    """Counts how often it is asked; waits, fails or answers as told."""

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


def test_fifty_who_ask_at_once_cost_one_question() -> None:
    cache, source = Cache(), Source()
    source.gate.clear()
    with ThreadPoolExecutor(50) as threads:
        answers = [threads.submit(cache.get, "mids", source, fresh_seconds=60) for _ in range(50)]
        source.gate.set()
        assert {answer.result(10) for answer in answers} == {1}
    assert source.asked == 1


def test_an_answer_is_not_given_out_once_it_is_old() -> None:
    clock, source = Clock(), Source()
    cache = Cache(clock)
    assert cache.get("mids", source, fresh_seconds=2) == 1
    clock.now = 2 * SECOND - 1
    assert cache.get("mids", source, fresh_seconds=2) == 1
    clock.now = 2 * SECOND
    assert cache.get("mids", source, fresh_seconds=2) == 2
    assert cache.get("book", source, fresh_seconds=2) == 3


def test_a_failure_is_shared_for_a_moment_and_then_asked_about_again() -> None:
    clock, source = Clock(), Source()
    cache = Cache(clock)
    source.failure = PerpdexError("away", retry_after_seconds=5)
    seen = []
    for _ in range(3):
        with pytest.raises(PerpdexError) as caught:
            cache.get("mids", source, fresh_seconds=60, retry_seconds=2)
        seen.append(caught.value)
    assert source.asked == 1
    assert len({id(failure) for failure in seen}) == 3
    assert seen[2].retry_after_seconds == 5
    clock.now = 2 * SECOND
    source.failure = None
    assert cache.get("mids", source, fresh_seconds=60) == 2


def test_a_defect_leaves_nobody_waiting_and_is_not_remembered() -> None:
    cache, source = Cache(), Source()
    source.failure = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        cache.get("mids", source, fresh_seconds=60)
    source.failure = None
    assert cache.get("mids", source, fresh_seconds=60) == 2


def test_keys_that_nobody_asks_for_any_more_are_forgotten() -> None:
    clock, source = Clock(), Source()
    cache = Cache(clock)
    for number in range(5000):
        clock.now += SECOND
        cache.get(number, source, fresh_seconds=1)
    assert len(cache._flights) <= 1000
