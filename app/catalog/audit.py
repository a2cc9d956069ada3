"""Proof of the counters: what services earned is what their callers were charged, and the stripes add up."""

from __future__ import annotations

from sqlalchemy import func, select

from app.catalog.models import ServiceCaller, ServiceTotal
from app.extensions import db
from app.usage import service as usage

_PREFIX = "service:"


def check() -> list[str]:
    """Return one sentence per violated invariant, none when all is well. Works in a reading unit."""
    return [*_wrong_revenue(), *_wrong_callers()]


def _wrong_revenue() -> list[str]:
    charged = {
        provider.removeprefix(_PREFIX): nanos
        for provider, nanos in usage.revenue_by_provider(prefix=_PREFIX).items()
        if nanos
    }
    counted = {
        service_id: int(nanos)
        for service_id, nanos in db.session.execute(
            select(ServiceTotal.service_id, func.sum(ServiceTotal.revenue_nanos)).group_by(
                ServiceTotal.service_id
            )
        )
        if nanos
    }
    return [
        f"service {service_id}: callers were charged {charged.get(service_id, 0)} nano-dollars, "
        f"counted are {counted.get(service_id, 0)}"
        for service_id in sorted(charged.keys() | counted.keys())
        if charged.get(service_id, 0) != counted.get(service_id, 0)
    ]


def _wrong_callers() -> list[str]:
    """Find wallets' sums above the totals; they may be below, for calls of gateway-only keys have no wallet."""
    wallets = (
        select(
            ServiceCaller.service_id,
            func.sum(ServiceCaller.calls).label("calls"),
            func.sum(ServiceCaller.spent_nanos).label("nanos"),
        )
        .group_by(ServiceCaller.service_id)
        .subquery()
    )
    totals = (
        select(
            ServiceTotal.service_id,
            func.sum(ServiceTotal.calls).label("calls"),
            func.sum(ServiceTotal.revenue_nanos).label("nanos"),
        )
        .group_by(ServiceTotal.service_id)
        .subquery()
    )
    rows = db.session.execute(
        select(wallets.c.service_id)
        .outerjoin(totals, totals.c.service_id == wallets.c.service_id)
        .where(
            (wallets.c.calls > func.coalesce(totals.c.calls, 0))
            | (wallets.c.nanos > func.coalesce(totals.c.nanos, 0))
        )
    )
    return [f"service {row.service_id}: its callers' sums are above its totals" for row in rows]
