"""Audit of the counters: revenue equals what callers were charged or paid, and the stripes add up."""

from collections import Counter
from typing import Any

from sqlalchemy import Subquery, func, select
from sqlalchemy.orm import Session

from app.catalog.models import PROVIDER_PREFIX, ServiceCaller, ServiceTotal
from app.payments import claimed_payments
from app.usage import service as usage


def check(session: Session) -> list[str]:
    return [*_find_wrong_revenue(session), *_find_wrong_callers(session)]


def _find_wrong_revenue(session: Session) -> list[str]:
    charged: Counter[str] = Counter()
    for revenue in (
        usage.revenue_by_provider(session, prefix=PROVIDER_PREFIX),
        claimed_payments.revenue_by_provider(session, prefix=PROVIDER_PREFIX),
    ):
        charged.update({provider.removeprefix(PROVIDER_PREFIX): nanos for provider, nanos in revenue.items()})
    counted = {
        service_id: int(nanos)
        for service_id, nanos in session.execute(
            select(ServiceTotal.service_id, func.sum(ServiceTotal.revenue_nanos)).group_by(ServiceTotal.service_id)
        )
        if nanos
    }
    return [
        f"service {service_id}: callers paid {charged[service_id]} nano-dollars, "
        f"but {counted.get(service_id, 0)} are counted"
        for service_id in sorted(charged.keys() | counted.keys())
        if charged[service_id] != counted.get(service_id, 0)
    ]


def _find_wrong_callers(session: Session) -> list[str]:
    """Find sums of wallets above the totals; they may be below, because gateway-only keys have no wallet."""
    wallets = _sums(ServiceCaller.service_id, ServiceCaller.calls, ServiceCaller.spent_nanos)
    totals = _sums(ServiceTotal.service_id, ServiceTotal.calls, ServiceTotal.revenue_nanos)
    rows = session.execute(
        select(wallets.c.service_id)
        .outerjoin(totals, totals.c.service_id == wallets.c.service_id)
        .where(
            (wallets.c.calls > func.coalesce(totals.c.calls, 0)) | (wallets.c.nanos > func.coalesce(totals.c.nanos, 0))
        )
    )
    return [f"service {row.service_id}: the sums of its callers exceed its totals" for row in rows]


def _sums(service_id: Any, calls: Any, nanos: Any) -> Subquery:
    summed = select(service_id, func.sum(calls).label("calls"), func.sum(nanos).label("nanos"))
    return summed.group_by(service_id).subquery()
