"""Counters of services: exact at the limits of a period, and equal to what was charged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from flask import Flask
from sqlalchemy import func, select

from app.catalog import statistics
from app.catalog.models import Service, ServiceLatency, ServiceMinute
from app.catalog.services import service as services
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from tests.support.agents import register
from tests.support.market import sell

NOON = datetime(2026, 5, 4, 12, 0, 30, tzinfo=UTC)
DAY = timedelta(hours=24)


@pytest.fixture
def service_id(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[str]:
    """A service without charges; these tests only count."""
    app = build_app(each_database_url)
    with app.app_context():
        yield sell(register(app.test_client()))["id"]
        # The audit after each test compares counters with charges, and here there are none.
        with unit_of_work() as session:
            for table in ("service_totals", "service_callers"):
                session.connection().exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608 - our own names


def answered(service_id: str, at: datetime, *, nanos: int = 5, wallet: str | None = None, ms: int = 40) -> None:
    with unit_of_work() as session:
        statistics.record_answered_call(
            session, service_id, wallet_id=wallet, charged_nanos=nanos, microseconds=ms * 1000, at=at
        )


def failed(service_id: str, at: datetime) -> None:
    with unit_of_work() as session:
        statistics.record_failed_call(session, service_id, at=at)


def day(service_id: str, now: datetime) -> statistics.DailyUsage:
    with read_only_unit() as session:
        return statistics.last_24_hours(session, [service_id], now)[service_id]


def test_a_call_is_counted_for_24_hours_to_the_minute(service_id: str) -> None:
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
    with read_only_unit() as session:
        assert statistics.totals(session, service_id) == statistics.ServiceTotals(1, 5)


def test_reliability_is_the_share_of_calls_that_were_answered(service_id: str) -> None:
    assert day(service_id, NOON) == statistics.DailyUsage(0, 0, None, None)
    failed(service_id, NOON)
    assert day(service_id, NOON) == statistics.DailyUsage(0, 0, Decimal(0), None)
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


def test_the_ten_top_callers_are_listed(service_id: str) -> None:
    wallets = sorted(new_id() for _ in range(12))
    for calls, wallet in enumerate(wallets):
        for _ in range(calls):
            answered(service_id, NOON, wallet=wallet, nanos=3)
    with read_only_unit() as session:
        top = statistics.top_callers(session, service_id)
    assert [(each.wallet_id, each.calls, each.spent_nanos) for each in top] == [
        (wallets[calls], calls, calls * 3) for calls in range(11, 1, -1)
    ]


def test_a_lagging_rank_is_refreshed_by_the_sweep(service_id: str) -> None:
    answered(service_id, NOON)
    with unit_of_work() as session:
        session.get_one(Service, service_id).total_calls = 0
    statistics.refresh_totals(NOON)
    with read_only_unit() as session:
        assert services.find(session, service_id).total_calls == 1


def test_expired_history_is_deleted_and_totals_stay(service_id: str) -> None:
    answered(service_id, NOON)
    failed(service_id, NOON - timedelta(days=2))
    statistics.prune_history(NOON + DAY)
    assert day(service_id, NOON + DAY).calls == 1
    # The sum of what is held for seven days needs its minutes.
    statistics.prune_history(NOON + 7 * DAY)
    with read_only_unit() as session:
        assert statistics.revenue_since(session, service_id, NOON) == 5
        assert statistics.revenue_since(session, service_id, NOON + timedelta(minutes=1)) == 0
    statistics.prune_history(NOON + 7 * DAY + timedelta(hours=3))
    with read_only_unit() as session:
        for table in (ServiceMinute, ServiceLatency):
            assert session.scalar(select(func.count()).select_from(table)) == 0
        assert statistics.totals(session, service_id).calls == 1
