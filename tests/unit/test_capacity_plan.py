"""The capacity plan: its page has what the program prints, and its arithmetic agrees with its simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from app.db import group_commit
from benchmarks import capacity_plan
from benchmarks.capacity_plan import DOCUMENT, Plan
from benchmarks.capacity_simulation import MAX_BATCH, Commit, account_shares, simulate_key, simulate_steps


def table(title: str) -> list[Sequence[str]]:
    return next(rows for name, _, rows in capacity_plan.tables(Plan()) if name == title)


def test_the_page_has_the_tables_that_the_program_prints() -> None:
    page = DOCUMENT.read_text()
    assert "### Hot rows" in page
    assert capacity_plan.with_tables(page) == page, "run python -m benchmarks.capacity_plan --write"


def test_the_arithmetic_agrees_with_the_simulation_within_ten_percent() -> None:
    rows = table("Hot rows")
    assert len(rows) == 7
    for name, expected, found, _, _ in rows:
        wanted = float(expected.replace(" ", ""))
        assert float(found.replace(" ", "")) == pytest.approx(wanted, rel=0.1), name


def test_batches_are_as_large_as_those_of_the_service() -> None:
    assert MAX_BATCH == group_commit._MAX_BATCH


def test_a_row_that_is_not_saturated_commits_what_arrives() -> None:
    commit = Commit(0.002, 0, max_batch=1)
    found = simulate_steps(100, 4, 60, commit, rows=lambda _: (0,), seed=1)
    assert found.rate == pytest.approx(100, rel=0.1)
    assert found.wait(0.5) < 0.01


def test_units_that_share_a_row_commit_one_after_another_and_others_together() -> None:
    commit = Commit(0.01, 0, max_batch=1)

    def done(rows: int) -> float:
        def of_step(chance: random.Random) -> Sequence[int]:
            return (chance.randrange(rows),)

        return simulate_steps(1000, 8, 20, commit, rows=of_step, seed=1).rate

    assert done(1) == pytest.approx(100, rel=0.1)
    assert done(1_000_000) == pytest.approx(800, rel=0.1)


def test_a_key_submits_no_more_than_its_pending_limit_in_each_block_that_comes() -> None:
    unit = Commit(0.001, 0, max_batch=1)
    found = simulate_key(100, 4000, unit, block=2, missed=0.25, max_pending=16, seed=1)
    assert found == pytest.approx(6, rel=0.1)
    assert simulate_key(1, 4000, unit, block=2, missed=0, max_pending=16, seed=1) == pytest.approx(1, rel=0.1)


def test_limited_accounts_leave_their_calls_to_the_others() -> None:
    shares = account_shares(1000, 1, 0.01)
    assert sum(shares) == pytest.approx(1)
    assert max(shares) <= 0.01 + 1e-12
    assert shares == sorted(shares, reverse=True)
    assert account_shares(1000, 1, 1)[0] == pytest.approx(0.1336, rel=0.01)


def test_twice_the_calls_need_twice_the_log_and_no_more_settlement_keys() -> None:
    plan, twice = Plan(movements=0), Plan(movements=0, calls=20_000)
    assert twice.wal == pytest.approx(2 * plan.wal)
    assert capacity_plan._keys(replace(Plan(), calls=20_000), "Base") == capacity_plan._keys(Plan(), "Base")
