"""Counters of calls, written in the unit of work that charges a call, so that both always agree.

A call adds to one of several stripes, and refreshes the service's row, which ranks the catalog, only if it is
unlocked: calls of one service never wait for each other. The only writer of the counters.
"""

import math
import secrets
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, Row, bindparam, delete, func, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.catalog.models import PROVIDER_PREFIX, Service, ServiceCaller, ServiceLatency, ServiceMinute, ServiceTotal
from app.core import clock
from app.db import lock_order
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.tables import sums, table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.outbox import EventType
from app.payments import claimed_payments
from app.state import app_state
from app.usage import service as usage

_GROWTH = Decimal("1.2")
# Of more than an hour.
LAST_BUCKET = 84
STRIPES = 8
_DAY = timedelta(hours=24)
# The current minute and hour are kept in addition to the full day before.
_RETENTION = _DAY + timedelta(hours=2)
_ROUNDING = timedelta(minutes=2)
_RECENT = timedelta(minutes=5)
WINDOW = timedelta(minutes=10)
MIN_CALLS = 10
MIN_FAILURES_PERCENT = 50


_COUNTERS = {
    each: PreparedInsert(each, adds=True) for each in (ServiceCaller, ServiceTotal, ServiceMinute, ServiceLatency)
}


def bucket_of(microseconds: int) -> int:
    """Return the number of the bucket of a latency: 0 below a millisecond.

    Each bucket is a fifth wider than the one before, and a median is the middle of its bucket: its cost does not depend
    on the number of calls, and its error is at most 10 % (and it is rounded to a millisecond).
    """
    milliseconds = microseconds / 1_000
    return 0 if milliseconds < 1 else min(LAST_BUCKET, 1 + math.floor(math.log(milliseconds, _GROWTH)))


def median_milliseconds(calls_by_bucket: Mapping[int, int]) -> int | None:
    """Return the lower median of the buckets, at least 1; None if they are empty."""
    left = (sum(calls_by_bucket.values()) + 1) // 2
    if left == 0:
        return None
    for bucket in sorted(calls_by_bucket):
        left -= calls_by_bucket[bucket]
        if left <= 0:
            return max(1, round((1 + _GROWTH) / 2 * _GROWTH ** (bucket - 1)))
    return None


@dataclass(frozen=True, slots=True)
class ServiceTotals:
    """All paid calls of a service."""

    calls: int
    revenue_nanos: int


@dataclass(frozen=True, slots=True)
class DailyUsage:
    """The last 24 hours, to the minute: paid calls, their revenue, and how reliable and fast the service was.

    `success_rate` is the share of forwarded calls with a status below 500; it and the median are None without calls.
    """

    calls: int
    revenue_nanos: int
    success_rate: Decimal | None
    median_latency_ms: int | None


def record_answered_call(
    session: Session,
    service_id: str,
    *,
    wallet_id: str | None,
    charged_nanos: int,
    microseconds: int,
    at: datetime | None = None,
) -> None:
    """Count a paid call, in the unit that charges it. Four short upserts and a refresh."""
    at = at or clock.now()
    stripe = _stripe(session)
    paid = {"calls": 1, "revenue_nanos": charged_nanos}
    # Always in this order, to prevent deadlocks.
    if wallet_id is not None:
        caller = {"service_id": service_id, "wallet_id": wallet_id}
        _COUNTERS[ServiceCaller].execute(session, {**caller, "calls": 1, "spent_nanos": charged_nanos})
    striped = {"service_id": service_id, "stripe": stripe}
    _COUNTERS[ServiceTotal].execute(session, {**striped, **paid})
    _COUNTERS[ServiceMinute].execute(session, {**striped, **paid, "minute": _minute(at), "failures": 0})
    _COUNTERS[ServiceLatency].execute(
        session, {**striped, "hour": _hour(at), "bar": bucket_of(microseconds), "calls": 1}
    )
    # Unless the row is locked: then the next call or the sweep does it.
    _REFRESH_RANK.execute(session, {"of_service": service_id})


def record_failed_call(session: Session, service_id: str, *, at: datetime | None = None) -> None:
    key = {"service_id": service_id, "minute": _minute(at or clock.now()), "stripe": _stripe(session)}
    _COUNTERS[ServiceMinute].execute(session, {**key, "calls": 0, "revenue_nanos": 0, "failures": 1})


def totals(session: Session, service_id: str) -> ServiceTotals:
    of_service = ServiceTotal.service_id == service_id
    return ServiceTotals(*sums(session, ServiceTotal.calls, ServiceTotal.revenue_nanos, where=[of_service]))


def last_24_hours(session: Session, service_ids: Collection[str], now: datetime | None = None) -> dict[str, DailyUsage]:
    """Return the last 24 hours of services, by id. Reads at most one row per minute and stripe of each."""
    now, buckets = now or clock.now(), defaultdict[str, dict[int, int]](dict)
    minute, latency = ServiceMinute, ServiceLatency
    counted = [func.sum(each) for each in (minute.calls, minute.revenue_nanos, minute.failures)]
    of_minutes = minute.service_id.in_(service_ids), minute.minute >= _minute(now) - _DAY
    rows = session.execute(select(minute.service_id, *counted).where(*of_minutes).group_by(minute.service_id))
    totals_of = {service_id: [int(each) for each in found] for service_id, *found in rows}
    of_hours = latency.service_id.in_(service_ids), latency.hour >= _hour(now) - _DAY
    by = latency.service_id, latency.bar
    for service_id, bar, calls in session.execute(select(*by, func.sum(latency.calls)).where(*of_hours).group_by(*by)):
        buckets[service_id][bar] = int(calls)
    return {each: _daily_usage(buckets[each], *totals_of.get(each, [0, 0, 0])) for each in service_ids}


def _daily_usage(buckets: Mapping[int, int], calls: int, revenue_nanos: int, failures: int) -> DailyUsage:
    attempted = calls + failures
    rate = (Decimal(calls) / Decimal(attempted)).quantize(Decimal("0.0001")) if attempted else None
    return DailyUsage(calls, revenue_nanos, rate, median_milliseconds(buckets) if attempted else None)


def revenue_since(session: Session, service_id: str, since: datetime) -> int:
    """Return the revenue since an instant, in whole minutes: at least what was earned since."""
    of_minutes = ServiceMinute.service_id == service_id, ServiceMinute.minute >= _minute(since)
    return sums(session, ServiceMinute.revenue_nanos, where=of_minutes)[0]


def top_callers(session: Session, service_id: str) -> Sequence[Row[str, int, int]]:
    return session.execute(
        select(ServiceCaller.wallet_id, ServiceCaller.calls, ServiceCaller.spent_nanos)
        .where(ServiceCaller.service_id == service_id)
        .order_by(ServiceCaller.calls.desc(), ServiceCaller.spent_nanos.desc(), ServiceCaller.wallet_id)
        .limit(10)
    ).all()


def refresh_totals(now: datetime) -> None:
    """Refresh the totals of recently called services. For the sweep; opens its own unit."""
    recently_called = select(ServiceMinute.service_id).where(ServiceMinute.minute >= now - _RECENT)
    with unit_of_work() as session:
        lagging = lock_order.lock_rows(
            session, Service.id, Service.id.in_(recently_called), Service.total_calls != _sum(ServiceTotal.calls)
        )
        session.execute(update(table_of(Service)).where(Service.id.in_(lagging)).values(_exact_totals()))


def prune_history(now: datetime) -> None:
    """Delete minutes and hours that are no longer read. For the sweep; opens its own unit."""
    # Earnings that are held are the sums of their minutes.
    held = timedelta(hours=app_state().settings.payout_holding_hours) + _ROUNDING
    with unit_of_work() as session:
        session.execute(delete(table_of(ServiceMinute)).where(ServiceMinute.minute < now - max(_RETENTION, held)))
        session.execute(delete(table_of(ServiceLatency)).where(ServiceLatency.hour < now - _RETENTION))


def _exact_totals() -> dict[InstrumentedAttribute[int], Any]:
    return {
        Service.total_calls: _sum(ServiceTotal.calls),
        Service.total_revenue_nanos: _sum(ServiceTotal.revenue_nanos),
    }


def _sum(column: InstrumentedAttribute[int]) -> ColumnElement[int]:
    summed = select(func.coalesce(func.sum(column), 0)).where(ServiceTotal.service_id == Service.id)
    return summed.correlate(Service).scalar_subquery()


_UNLOCKED = select(Service.id).where(Service.id == bindparam("of_service"))
_IS_UNLOCKED = Service.id.in_(_UNLOCKED.with_for_update(skip_locked=True, key_share=True).scalar_subquery())
_REFRESH_RANK = PreparedStatement(update(table_of(Service)).where(_IS_UNLOCKED).values(_exact_totals()))


def _stripe(session: Session) -> int:
    # SQLite has only one writer at a time, and reads a single stripe faster.
    return secrets.randbelow(STRIPES) if session.get_bind().dialect.name == "postgresql" else 0


def _minute(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _hour(at: datetime) -> datetime:
    return at.replace(minute=0, second=0, microsecond=0)


def announce_unhealthy(now: datetime) -> None:
    """Record an event for each service when half of at least ten calls in ten minutes failed, once an hour."""
    # The counters have paid calls and failed ones apart.
    failures = func.sum(ServiceMinute.failures)
    calls = func.sum(ServiceMinute.calls) + failures
    query = (
        select(Service.id, Service.agent_id, Service.name, calls.label("calls"), failures.label("failures"))
        .join(ServiceMinute, ServiceMinute.service_id == Service.id)
        .where(ServiceMinute.minute >= now - WINDOW)
        .group_by(Service.id, Service.agent_id, Service.name)
        .having(calls >= MIN_CALLS, failures * 100 >= calls * MIN_FAILURES_PERCENT)
    )
    with read_only_unit() as session:
        rows = session.execute(query).all()
    since, once = clock.isoformat(now - WINDOW), f"unhealthy:{now:%Y-%m-%dT%H}"
    for row in rows:
        counted = {"calls": int(row.calls), "failures": int(row.failures), "since": since}
        data = {"service_id": row.id, "name": row.name, **counted}
        owner = {"agent_id": row.agent_id, "object_id": row.id}
        with unit_of_work() as session:
            outbox.record(session, EventType.SERVICE_UNHEALTHY, **owner, data=data, once=once)


def find_wrong_sums(session: Session) -> list[str]:
    """Return one sentence for each sum that differs from what callers were charged or paid, or from its stripes.

    The sums of wallets may be below the totals, because gateway-only keys have no wallet.
    """
    charged: Counter[str] = Counter()
    for revenue_by_provider in (usage.revenue_by_provider, claimed_payments.revenue_by_provider):
        charged.update(revenue_by_provider(session, prefix=PROVIDER_PREFIX))
    calls = _by_service(session, ServiceTotal.calls)
    counted = _by_service(session, ServiceTotal.revenue_nanos)
    calls_of_wallets = _by_service(session, ServiceCaller.calls)
    spent_by_wallets = _by_service(session, ServiceCaller.spent_nanos)
    wrong = [
        f"{name}: callers paid {charged[name]} nano-dollars, but {counted[name]} are counted"
        for name in sorted(charged.keys() | counted.keys())
        if charged[name] != counted[name]
    ]
    return wrong + [
        f"{name}: the sums of its callers exceed its totals"
        for name in calls_of_wallets
        if calls_of_wallets[name] > calls[name] or spent_by_wallets[name] > counted[name]
    ]


def _by_service(session: Session, column: InstrumentedAttribute[int]) -> Counter[str]:
    """Return the sums of a counter by the provider's name of the service."""
    of_service = column.class_.service_id
    rows = session.execute(select(of_service, func.sum(column)).group_by(of_service))
    return Counter({f"{PROVIDER_PREFIX}{service_id}": int(total) for service_id, total in rows})
