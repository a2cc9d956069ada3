"""Rate limits count in Redis across processes, and go on counting in memory without it.

A busy client's requests are counted several in a round trip, which never grants more than the stated bound.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import time_machine
from limits import parse

from app.capacity import limiter as limiter_module
from app.capacity.limiter import RateLimiter
from app.core.identifiers import new_id
from app.errors import RateLimited
from tests.support.servers import free_port, redis_server

_LIMIT = "3 per minute;100 per hour"
_BUSY, _AMOUNT, _WINDOW_SECONDS = "600 per minute", 600, 60
# A process holds at most a hundredth of the limit, of which it has granted one.
_UNGRANTED = _AMOUNT // 100 - 1


def _counted(limiter: RateLimiter, client: str, *, attempts: int, limit: str = _LIMIT) -> int:
    """Return how many requests were within the limit."""
    count = 0
    for _ in range(attempts):
        with suppress(RateLimited):
            limiter.count(limit, "key", client)
            count += 1
    return count


def _remaining(limiter: RateLimiter, client: str) -> int:
    """Return how many requests of the busy limit are not counted in Redis."""
    return limiter._shared.get_window_stats(parse(_BUSY), client, "key").remaining


def _scripts_run(limiter: RateLimiter) -> int:
    return int(limiter._shared.storage.storage.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"])


@pytest.fixture
def limiters(redis_url: str) -> Iterator[list[RateLimiter]]:
    """Return the limiters of three processes."""
    each = [RateLimiter(redis_url) for _ in range(3)]
    yield each
    for limiter in each:
        limiter._shared.storage.storage.close()


@pytest.fixture
def moved_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Stop the clock by which leases expire, and return the function that moves it."""
    now = time.monotonic()

    def move(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(time, "monotonic", lambda: now)
    return move


def test_two_processes_share_one_count(redis_url: str) -> None:
    client = new_id()
    first, second = RateLimiter(redis_url), RateLimiter(redis_url)
    assert [_counted(first, client, attempts=2), _counted(second, client, attempts=9)] == [2, 1]
    with pytest.raises(RateLimited) as refusal:
        first.check(_LIMIT, "key", client)
    assert 0 < (refusal.value.retry_after_seconds or 0) <= 60
    # Neither another client nor another scope is affected.
    assert _counted(second, new_id(), attempts=9) == 3
    first.check(_LIMIT, "registration", client)


def test_a_check_counts_nothing(redis_url: str) -> None:
    limiter, client = RateLimiter(redis_url), new_id()
    for _ in range(9):
        limiter.check(_LIMIT, "keyless", client)
    assert _counted(limiter, client, attempts=9) == 3


def test_without_redis_a_process_counts_alone_until_it_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    port, client = free_port(), new_id()
    limiter = RateLimiter(f"redis://127.0.0.1:{port}/0")
    assert _counted(limiter, client, attempts=9) == 3
    with redis_server(port=port) as url:
        # Redis is not asked again at every request.
        assert _counted(limiter, client, attempts=9) == 0
        monkeypatch.setattr(limiter, "_local_until", 0.0)
        assert _counted(limiter, client, attempts=2) == 2
        assert _counted(RateLimiter(url), client, attempts=9) == 1


def test_processes_without_redis_together_grant_no_more_than_the_limit() -> None:
    client, url = new_id(), f"redis://127.0.0.1:{free_port()}/0"
    each = [RateLimiter(url) for _ in range(4)]
    for limiter in each:
        limiter.processes = 4
    assert [_counted(limiter, client, attempts=9, limit="8 per minute") for limiter in each] == [2] * 4
    assert [_counted(limiter, new_id(), attempts=9, limit="3 per minute") for limiter in each] == [1] * 4


def test_unlimited_counts_nothing(redis_url: str) -> None:
    limiter = RateLimiter(redis_url)
    for limit in (None, ""):
        limiter.count(limit, "key", "client")
    assert limiter_module._parse("") == []


def test_threads_of_several_processes_are_granted_no_more_than_the_bound(limiters: list[RateLimiter]) -> None:
    client = new_id()

    def send(thread: int) -> int:
        granted = 0
        while _counted(limiters[thread % 3], client, attempts=1, limit=_BUSY):
            granted += 1
        return granted

    with ThreadPoolExecutor(9) as threads:
        granted = sum(threads.map(send, range(9)))
    assert _AMOUNT * 8 // 9 <= granted <= _AMOUNT + len(limiters) * _UNGRANTED


@pytest.mark.usefixtures("moved_clock")
def test_leases_of_an_earlier_window_add_exactly_the_bound(limiters: list[RateLimiter]) -> None:
    client = new_id()
    *earlier, last = limiters
    with time_machine.travel(time.time(), tick=False) as moved:
        for limiter in earlier:
            assert _counted(limiter, client, attempts=99, limit=_BUSY) == 99
            # Until the process has just counted a lease.
            counted = 0
            while counted < 2:
                before = _remaining(limiter, client)
                assert _counted(limiter, client, attempts=1, limit=_BUSY) == 1
                counted = before - _remaining(limiter, client)
        moved.shift(_WINDOW_SECONDS + 1)
        assert _counted(last, client, attempts=2 * _AMOUNT, limit=_BUSY) == _AMOUNT
        for limiter in limiters:
            granted = _counted(limiter, client, attempts=_AMOUNT, limit=_BUSY)
            assert granted == (_UNGRANTED if limiter in earlier else 0)


@pytest.mark.usefixtures("moved_clock")
def test_a_busy_client_is_counted_several_requests_in_a_round_trip(limiters: list[RateLimiter]) -> None:
    before = _scripts_run(limiters[0])
    assert _counted(limiters[0], new_id(), attempts=_AMOUNT, limit=_BUSY) == _AMOUNT
    assert _scripts_run(limiters[0]) - before < _AMOUNT // 2


def test_a_slow_client_is_counted_exactly_and_an_unused_lease_expires(
    limiters: list[RateLimiter], moved_clock: Callable[[float], None]
) -> None:
    limiter, client = limiters[0], new_id()
    granted = _counted(limiter, client, attempts=15, limit=_BUSY)
    assert granted == 15
    assert _remaining(limiter, client) == _AMOUNT - granted
    while (counted := _AMOUNT - _remaining(limiter, client)) == granted:
        granted += _counted(limiter, client, attempts=1, limit=_BUSY)
    moved_clock(1.0)
    _counted(limiter, client, attempts=1, limit=_BUSY)
    assert _remaining(limiter, client) == _AMOUNT - counted - 1


def test_leases_of_many_clients_take_bounded_memory() -> None:
    limiter = RateLimiter(f"redis://127.0.0.1:{free_port()}/0")
    for client in range(limiter_module._MAX_LEASES + 10):
        limiter.count(_BUSY, "key", str(client))
    assert len(limiter._leases) == limiter_module._MAX_LEASES


def test_requests_wait_for_their_turn_and_all_are_counted(limiters: list[RateLimiter]) -> None:
    limiter, client = limiters[0], new_id()
    started = time.monotonic()
    with ThreadPoolExecutor(3) as threads:
        waiting = [
            threads.submit(limiter.count_when_permitted, "1 per second", "service", client, within_seconds=20)
            for _ in range(3)
        ]
    assert [each.result() for each in waiting] == [None] * 3
    assert time.monotonic() - started >= 2
    assert _counted(limiter, client, attempts=1, limit="1 per second") <= 1


def test_a_turn_that_comes_too_late_is_refused_without_a_wait(limiters: list[RateLimiter]) -> None:
    limiter, client = limiters[0], new_id()
    limiter.count_when_permitted("1 per hour", "service", client, within_seconds=0)
    started = time.monotonic()
    for _ in range(3):
        with pytest.raises(RateLimited) as refusal:
            limiter.count_when_permitted("1 per hour", "service", client, within_seconds=30)
        assert 3590 <= (refusal.value.retry_after_seconds or 0) <= 3600
    assert time.monotonic() - started < 10


def test_a_queue_has_an_end(limiters: list[RateLimiter], monkeypatch: pytest.MonkeyPatch) -> None:
    limiter, client = limiters[0], new_id()
    monkeypatch.setattr(limiter, "_places", threading.BoundedSemaphore(2))

    def wait_in_turn(_number: int) -> bool:
        with suppress(RateLimited):
            limiter.count_when_permitted("1 per 2 seconds", "service", client, within_seconds=20)
            return True
        return False

    with ThreadPoolExecutor(9) as threads:
        granted = sum(threads.map(wait_in_turn, range(9)))
    assert 2 <= granted < 9
