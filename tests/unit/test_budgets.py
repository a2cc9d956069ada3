"""Who may have how much of what a process has little of: never more than there is, and never all of it."""

from __future__ import annotations

import pytest

from app.web.budgets import STRANGERS, Budget, Use

WAITS = [Use.UPSTREAM, Use.STRANGER, Use.CALLER, Use.OUTCOME]


def take_all(budget: Budget, use: Use, whose: str) -> int:
    taken = 0
    while budget.take(use, whose):
        taken += 1
    return taken


def take_all_by_many(budget: Budget, use: Use) -> int:
    return sum(take_all(budget, use, f"{use}-{number}") for number in range(2000))


@pytest.mark.parametrize("threads", [1, 2, 3, 20, 50, 250, 1100, 2200])
def test_all_who_wait_together_leave_threads_to_those_who_do_not(threads: int) -> None:
    for first in range(len(WAITS)):
        budget = Budget.of_threads(threads)
        waiting = sum(take_all_by_many(budget, use) for use in WAITS[first:] + WAITS[:first])
        assert 1 <= waiting <= max(threads - min(40, threads // 5), 1)


@pytest.mark.parametrize(("threads", "lanes"), [(1, 1), (20, 10), (200, 100), (1100, 1000), (2200, 2100)])
def test_streams_are_capped_a_hundred_below_the_threads(threads: int, lanes: int) -> None:
    budget = Budget.of_threads(threads)
    assert take_all_by_many(budget, Use.UPSTREAM) == budget.most(Use.UPSTREAM) == lanes


@pytest.mark.parametrize("use", WAITS)
def test_whatever_all_others_take_each_use_has_its_own(use: Use) -> None:
    budget = Budget.of_threads(1100)
    for other in WAITS:
        if other is not use:
            take_all_by_many(budget, other)
    assert take_all_by_many(budget, use) == (500 if use is Use.UPSTREAM else 20)


def test_strangers_leave_half_to_calls_that_are_paid_for_and_places_to_slow_callers_with_a_key() -> None:
    budget = Budget.of_threads(1100)
    take_all(budget, Use.STRANGER, STRANGERS)
    assert take_all_by_many(budget, Use.UPSTREAM) >= 500
    assert budget.take(Use.CALLER, "account")


def test_one_agent_leaves_a_fifth_to_the_next_one_and_so_on() -> None:
    budget = Budget.of_threads(1100)
    taken = [take_all(budget, Use.UPSTREAM, f"account-{number}") for number in range(3)]
    assert taken == [800, 160, 32]
    assert sum(taken) < budget.most(Use.UPSTREAM)


def test_one_agent_s_thousand_streams_fit_into_a_process_of_many_threads() -> None:
    assert take_all(Budget.of_threads(2200), Use.UPSTREAM, "account") > 1400


def test_what_is_given_back_can_be_taken_again() -> None:
    budget = Budget.of_threads(20)
    for _ in range(3):
        taken = take_all(budget, Use.UPSTREAM, "account")
        assert taken == 8
        for _ in range(taken):
            budget.give_back(Use.UPSTREAM, "account")
