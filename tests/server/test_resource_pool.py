"""Resource pools: never more than the total, and never all of it for one account or use."""

from __future__ import annotations

from fractions import Fraction

import pytest

from server.pool import ANONYMOUS, ResourcePool, ResourceUse

WAITS = [ResourceUse.UPSTREAM, ResourceUse.ANONYMOUS_CLIENT, ResourceUse.AUTHENTICATED_CLIENT, ResourceUse.OUTCOME]


def take_all(budget: ResourcePool, use: ResourceUse, account: str) -> int:
    taken = 0
    while budget.acquire(use, account):
        taken += 1
    return taken


def take_all_by_many(budget: ResourcePool, use: ResourceUse) -> int:
    return sum(take_all(budget, use, f"{use}-{number}") for number in range(2000))


@pytest.mark.parametrize("threads", [1, 2, 3, 20, 50, 250, 1100, 2200])
def test_all_waiting_uses_together_leave_threads_free(threads: int) -> None:
    for first in range(len(WAITS)):
        budget = ResourcePool.for_threads(threads)
        waiting = sum(take_all_by_many(budget, use) for use in WAITS[first:] + WAITS[:first])
        assert 1 <= waiting <= max(threads - min(40, threads // 5), 1)


@pytest.mark.parametrize(("threads", "permits"), [(1, 1), (20, 10), (200, 100), (1100, 1000), (2200, 2100)])
def test_streams_are_capped_a_hundred_below_the_threads(threads: int, permits: int) -> None:
    budget = ResourcePool.for_threads(threads)
    assert take_all_by_many(budget, ResourceUse.UPSTREAM) == budget.capacity(ResourceUse.UPSTREAM) == permits


@pytest.mark.parametrize("use", WAITS)
def test_each_use_keeps_its_reserve_when_all_others_are_exhausted(use: ResourceUse) -> None:
    budget = ResourcePool.for_threads(1100)
    for other in WAITS:
        if other is not use:
            take_all_by_many(budget, other)
    assert take_all_by_many(budget, use) == (500 if use is ResourceUse.UPSTREAM else 20)


def test_anonymous_clients_leave_half_to_paid_calls_and_a_reserve_to_authenticated_ones() -> None:
    budget = ResourcePool.for_threads(1100)
    take_all(budget, ResourceUse.ANONYMOUS_CLIENT, ANONYMOUS)
    assert take_all_by_many(budget, ResourceUse.UPSTREAM) >= 500
    assert budget.acquire(ResourceUse.AUTHENTICATED_CLIENT, "account")


def test_one_account_leaves_a_fifth_to_the_next_one_and_so_on() -> None:
    budget = ResourcePool.for_threads(1100)
    taken = [take_all(budget, ResourceUse.UPSTREAM, f"account-{number}") for number in range(3)]
    assert taken == [800, 160, 32]
    assert sum(taken) < budget.capacity(ResourceUse.UPSTREAM)


def test_one_large_amount_leaves_a_fifth_as_many_small_ones_do() -> None:
    budget = ResourcePool.for_bodies()
    most = budget.capacity(ResourceUse.BODY)
    assert not budget.acquire(ResourceUse.BODY, "account", most)
    assert budget.acquire(ResourceUse.BODY, "account", most * 4 // 5)
    assert not budget.acquire(ResourceUse.BODY, "account", 2**20)
    assert budget.acquire(ResourceUse.BODY, "another", most // 10)


def test_one_agent_s_thousand_streams_fit_into_a_process_of_many_threads() -> None:
    assert take_all(ResourcePool.for_threads(2200), ResourceUse.UPSTREAM, "account") > 1400


def test_a_released_amount_can_be_acquired_again() -> None:
    budget = ResourcePool.for_threads(20)
    for _ in range(3):
        taken = take_all(budget, ResourceUse.UPSTREAM, "account")
        assert taken == 8
        for _ in range(taken):
            budget.release(ResourceUse.UPSTREAM, "account")


def test_what_is_in_use_is_a_share_of_all() -> None:
    pool = ResourcePool(10, {ResourceUse.UPSTREAM: 4})
    assert pool.used == 0
    assert pool.acquire(ResourceUse.UPSTREAM, "a", 5)
    assert pool.acquire(ResourceUse.OUTCOME, "b", 2)
    assert pool.used == Fraction(7, 10)
    pool.release(ResourceUse.UPSTREAM, "a", 5)
    assert pool.used == Fraction(1, 5)
