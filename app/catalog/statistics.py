"""Counts of calls: added in the unit that settles a call's money, so that both always say the same.

A call adds to one of several stripes, and a service's row, which ranks the catalog, is refreshed by whoever
finds it unlocked: calls of one service never wait for each other. Alone writes the counters.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from app.catalog import histogram
from app.catalog.models import Service, ServiceCaller, ServiceLatency, ServiceMinute, ServiceTotal
from app.core import clock, row_locks
from app.core.unit_of_work import unit_of_work
from app.extensions import Model, db

STRIPES = 8
_DAY = timedelta(hours=24)
# The current minute and hour are kept besides the whole day before them.
_KEPT = _DAY + timedelta(hours=2)
_TOP = 10
_RECENT = timedelta(minutes=5)
_RATE = Decimal("0.0001")


@dataclass(frozen=True, slots=True)
class Totals:
    """All that a service was ever paid for."""

    calls: int
    revenue_nanos: int


@dataclass(frozen=True, slots=True)
class Day:
    """The last 24 hours, to the minute: paid calls, their revenue, and how reliable and fast the service was.

    `success_rate` is the share of forwarded calls that were answered below 500; it and the median are None where
    there was no call.
    """

    calls: int
    revenue_nanos: int
    success_rate: Decimal | None
    median_latency_ms: int | None


@dataclass(frozen=True, slots=True)
class TopCaller:
    """What a wallet has called and spent."""

    wallet_id: str
    calls: int
    spent_nanos: int


def count_answered(
    service_id: str,
    *,
    wallet_id: str | None,
    charged_nanos: int,
    microseconds: int,
    at: datetime | None = None,
) -> None:
    """Count a call that was answered and paid for, in the unit that charges it. Four short upserts and a refresh."""
    at = at or clock.now()
    stripe = _stripe()
    paid = {"calls": 1, "revenue_nanos": charged_nanos}
    # Always in this order, so that two units never wait for each other in a circle.
    if wallet_id is not None:
        _add(
            ServiceCaller,
            {"service_id": service_id, "wallet_id": wallet_id},
            {"calls": 1, "spent_nanos": charged_nanos},
        )
    _add(ServiceTotal, {"service_id": service_id, "stripe": stripe}, paid)
    _add(
        ServiceMinute,
        {"service_id": service_id, "minute": _minute(at), "stripe": stripe},
        {**paid, "failures": 0},
    )
    bar = histogram.bar_of(microseconds)
    _add(
        ServiceLatency,
        {"service_id": service_id, "hour": _hour(at), "bar": bar, "stripe": stripe},
        {"calls": 1},
    )
    _rank(service_id)


def count_failed(service_id: str, *, at: datetime | None = None) -> None:
    """Count a call that nobody paid for, because the service failed or gave no answer."""
    key = {
        "service_id": service_id,
        "minute": _minute(at or clock.now()),
        "stripe": _stripe(),
    }
    _add(ServiceMinute, key, {"calls": 0, "revenue_nanos": 0, "failures": 1})


def totals(service_id: str) -> Totals:
    """Return all that a service was ever paid for, exactly. Works in a reading unit."""
    row = db.session.execute(
        select(func.sum(ServiceTotal.calls), func.sum(ServiceTotal.revenue_nanos)).where(
            ServiceTotal.service_id == service_id
        )
    ).one()
    return Totals(int(row[0] or 0), int(row[1] or 0))


def last_day(service_id: str, now: datetime | None = None) -> Day:
    """Return the last 24 hours. Reads at most one row per minute and stripe. Works in a reading unit."""
    now = now or clock.now()
    calls, revenue_nanos, failures = (
        int(value or 0)
        for value in db.session.execute(
            select(
                func.sum(ServiceMinute.calls),
                func.sum(ServiceMinute.revenue_nanos),
                func.sum(ServiceMinute.failures),
            ).where(ServiceMinute.service_id == service_id, ServiceMinute.minute >= _minute(now) - _DAY)
        ).one()
    )
    bars: Mapping[int, int] = {
        bar: int(count)
        for bar, count in db.session.execute(
            select(ServiceLatency.bar, func.sum(ServiceLatency.calls))
            .where(ServiceLatency.service_id == service_id, ServiceLatency.hour >= _hour(now) - _DAY)
            .group_by(ServiceLatency.bar)
        )
    }
    tried = calls + failures
    rate = (Decimal(calls) / Decimal(tried)).quantize(_RATE) if tried else None
    return Day(calls, revenue_nanos, rate, histogram.median_milliseconds(bars) if tried else None)


def top_callers(service_id: str) -> list[TopCaller]:
    """Return the wallets that called most, at most ten. Works in a reading unit."""
    rows = db.session.execute(
        select(ServiceCaller.wallet_id, ServiceCaller.calls, ServiceCaller.spent_nanos)
        .where(ServiceCaller.service_id == service_id)
        .order_by(ServiceCaller.calls.desc(), ServiceCaller.spent_nanos.desc(), ServiceCaller.wallet_id)
        .limit(_TOP)
    )
    return [TopCaller(*row) for row in rows]


def refresh(now: datetime) -> None:
    """Bring the rank of services that were called lately up to date. For the sweep; opens its own unit."""
    lately = select(ServiceMinute.service_id).where(ServiceMinute.minute >= now - _RECENT)
    with unit_of_work():
        lagging = row_locks.lock(
            Service.id, Service.id.in_(lately), Service.total_calls != _sum(ServiceTotal.calls)
        )
        db.session.execute(
            update(Service)
            .where(Service.id.in_(lagging))
            .values(_exact())
            .execution_options(synchronize_session=False)
        )


def prune(now: datetime) -> None:
    """Forget minutes and hours that no reader asks for. For the sweep; opens its own unit."""
    with unit_of_work():
        for column in (ServiceMinute.minute, ServiceLatency.hour):
            db.session.execute(
                delete(column.class_).where(column < now - _KEPT).execution_options(synchronize_session=False)
            )


def _rank(service_id: str) -> None:
    """Refresh a service's rank, unless somebody else is doing it: then that one, the next call or the sweep will."""
    unlocked = (
        select(Service.id).where(Service.id == service_id).with_for_update(skip_locked=True, key_share=True)
    )
    db.session.execute(
        update(Service)
        .where(Service.id.in_(unlocked.scalar_subquery()))
        .values(_exact())
        .execution_options(synchronize_session=False)
    )


def _exact() -> dict[InstrumentedAttribute[int], Any]:
    return {
        Service.total_calls: _sum(ServiceTotal.calls),
        Service.total_revenue_nanos: _sum(ServiceTotal.revenue_nanos),
    }


def _sum(column: InstrumentedAttribute[int]) -> ColumnElement[int]:
    summed = select(func.coalesce(func.sum(column), 0)).where(ServiceTotal.service_id == Service.id)
    return summed.correlate(Service).scalar_subquery()


def _add(table: type[Model], key: Mapping[str, Any], amounts: Mapping[str, int]) -> None:
    """Add amounts to a row, making it where there is none; two at once both count."""
    insert = postgresql.insert if db.session.get_bind().dialect.name == "postgresql" else sqlite.insert
    statement: Any = insert(table).values(**key, **amounts)
    db.session.execute(
        statement.on_conflict_do_update(
            index_elements=list(key),
            set_={name: getattr(table, name) + amount for name, amount in amounts.items()},
        ).execution_options(synchronize_session=False)
    )


def _stripe() -> int:
    # SQLite has one writer at a time anyway, and reads a single stripe the faster.
    return secrets.randbelow(STRIPES) if db.session.get_bind().dialect.name == "postgresql" else 0


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)
