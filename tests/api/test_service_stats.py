"""Counters: right at the edges of time, and the same as what was charged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from flask import Flask
from sqlalchemy import func, select

from app.catalog import services, statistics
from app.catalog.models import Service, ServiceLatency, ServiceMinute
from app.core.identifiers import new_id
from app.core.unit_of_work import reading, unit_of_work
from tests.support.agents import register
from tests.support.market import sell

NOON = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
DAY = timedelta(hours=24)


@pytest.fixture
def service_id(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[str]:
    """A service that nobody has paid for; what these tests count was charged to nobody."""
    app = build_app(each_database_url)
    with app.app_context():
        yield sell(register(app.test_client()))["id"]
        # The audit at the end compares counters with charges, of which there are none here.
        with unit_of_work() as session:
            for table in ("service_totals", "service_callers"):
                session.connection().exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 - our own names


def answered(
    service_id: str, at: datetime, *, nanos: int = 5, wallet: str | None = None, ms: int = 40
) -> None:
    with unit_of_work():
        statistics.count_answered(
            service_id, wallet_id=wallet, charged_nanos=nanos, microseconds=ms * 1000, at=at
        )


def failed(service_id: str, at: datetime) -> None:
    with unit_of_work():
        statistics.count_failed(service_id, at=at)


def day(service_id: str, now: datetime) -> statistics.Day:
    with reading():
        return statistics.last_day(service_id, now)


def test_a_call_counts_for_a_day_to_the_minute(service_id: str) -> None:
    answered(service_id, NOON)
    for later, calls in (
        (timedelta(0), 1),
        (DAY - timedelta(seconds=1), 1),
        (DAY, 1),
        (DAY + timedelta(seconds=29), 1),
        (DAY + timedelta(seconds=30), 0),
        (DAY + timedelta(minutes=1), 0),
    ):
        found = day(service_id, NOON + later)
        assert (found.calls, found.revenue_nanos) == (calls, calls * 5), later
    with reading():
        assert statistics.totals(service_id) == statistics.Totals(1, 5)


def test_reliability_is_the_share_of_calls_that_were_answered(service_id: str) -> None:
    assert day(service_id, NOON) == statistics.Day(0, 0, None, None)
    failed(service_id, NOON)
    assert day(service_id, NOON) == statistics.Day(0, 0, Decimal(0), None)
    for _ in range(2):
        answered(service_id, NOON)
    found = day(service_id, NOON)
    assert (found.calls, found.success_rate) == (2, Decimal("0.6667"))
    assert day(service_id, NOON + timedelta(days=2)).success_rate is None


def test_the_median_is_that_of_the_day(service_id: str) -> None:
    for ms in (10, 100, 1000):
        answered(service_id, NOON, ms=ms)
    answered(service_id, NOON - timedelta(days=3), ms=60_000)
    median = day(service_id, NOON).median_latency_ms
    assert median is not None
    assert 90 <= median <= 110


def test_the_ten_who_called_most_are_told(service_id: str) -> None:
    wallets = sorted(new_id() for _ in range(12))
    for calls, wallet in enumerate(wallets):
        for _ in range(calls):
            answered(service_id, NOON, wallet=wallet, nanos=3)
    with reading():
        top = statistics.top_callers(service_id)
    assert [(each.wallet_id, each.calls, each.spent_nanos) for each in top] == [
        (wallets[calls], calls, calls * 3) for calls in range(11, 1, -1)
    ]


def test_a_rank_that_lagged_is_brought_up_to_date_by_the_sweep(service_id: str) -> None:
    answered(service_id, NOON)
    with unit_of_work() as session:
        session.get_one(Service, service_id).total_calls = 0
    statistics.refresh(NOON)
    with reading():
        assert services.active(service_id).total_calls == 1


def test_what_no_reader_asks_for_is_forgotten_and_totals_stay(service_id: str) -> None:
    answered(service_id, NOON)
    failed(service_id, NOON - timedelta(days=2))
    statistics.prune(NOON + DAY)
    assert day(service_id, NOON + DAY).calls == 1
    statistics.prune(NOON + DAY + timedelta(hours=3))
    with reading() as session:
        for table in (ServiceMinute, ServiceLatency):
            assert session.scalar(select(func.count()).select_from(table)) == 0
        assert statistics.totals(service_id).calls == 1
