"""Margins: what calls brought in, by credits and payments, less refunds and their cost at sellers and providers."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, cast, func, or_, select
from sqlalchemy.orm import Session

from app.catalog.models import PROVIDER_PREFIX, Payout, PayoutKind, PayoutStatus
from app.catalog.payouts import earnings
from app.core.pagination import Page, PageRequest
from app.db.tables import day_of, table_of, utc_day, within
from app.payments.claimed_payments import NANOS_PER_UNIT, PaymentRail, PaymentStatus
from app.payments.models import Payment
from app.shopping.service import PROVIDER as SHOPPING
from app.state import app_state
from app.usage import sums

_AMOUNTS = (*sums.AMOUNTS, "paid_nanos", "refunded_nanos", "provider_nanos", "margin_nanos")
_OF_PAYMENTS = {"day", "provider", "model"}


def page_of(
    session: Session, agent_id: str | None, group_by: Sequence[str], page: PageRequest, filters: Mapping[str, Any]
) -> Page[dict[str, Any]]:
    """Return the sums of calls with their margin, the dearest first. Raises: LimitReached.

    Payments without an account, and refunds, are only in sums by day, provider or model (None), of all or one provider.
    """
    rows = sums.sums_of(session, agent_id, list({*group_by, "provider"}), page, filters)
    named = {name for name, value in filters.items() if value is not None}
    if agent_id is None and _OF_PAYMENTS.issuperset(group_by) and named <= {"provider"}:
        of_payments = _paid(session, page) + _refunded(session, page)
        rows += [each for each in of_payments if filters["provider"] in (None, each["provider"])]
    found: dict[Any, Counter[str]] = defaultdict(Counter)
    for row in rows:
        found[tuple(row[name] for name in group_by)].update(_with_margin(row))
    return sums.page_of([{**dict(zip(group_by, of, strict=True)), **each} for of, each in found.items()], page)


def _paid(session: Session, page: PageRequest) -> list[dict[str, Any]]:
    by = utc_day(Payment.created_at, dialect=session.get_bind().dialect.name), Payment.provider
    # The others are granted as credits, from which the call is charged.
    is_own = Payment.rail != PaymentRail.UPTO.value, Payment.provider != SHOPPING
    is_served = Payment.served_at.is_not(None), Payment.status != PaymentStatus.REVERSED.value
    amounts = func.count(), func.sum(cast(Payment.units, BigInteger)) * NANOS_PER_UNIT
    found = select(*by, *amounts).where(*is_own, *is_served, *within(table_of(Payment), page)).group_by(*by)
    names = ("cost_nanos", "paid_nanos", "own_price_nanos")
    return [
        {"day": day_of(day), "provider": name, "model": None, "calls": calls, **dict.fromkeys(names, int(nanos))}
        for day, name, calls, nanos in session.execute(found)
    ]


def _refunded(session: Session, page: PageRequest) -> list[dict[str, Any]]:
    by = utc_day(Payout.created_at, dialect=session.get_bind().dialect.name), Payout.service_id, Payment.provider
    is_made = Payout.kind == PayoutKind.REFUND.value, Payout.status != PayoutStatus.FAILED.value
    is_served = or_(Payout.service_id.is_not(None), Payment.served_at.is_not(None))
    joined = select(*by, func.sum(Payout.amount_nanos)).outerjoin(Payment, Payment.id == Payout.call_id)
    joined = joined.where(*is_made, is_served, *within(table_of(Payout), page)).group_by(*by)
    return [
        {"day": day_of(day), "provider": name or f"{PROVIDER_PREFIX}{of}", "model": None, "refunded_nanos": int(nanos)}
        for day, of, name, nanos in session.execute(joined)
    ]


def _with_margin(row: Mapping[str, Any]) -> Mapping[str, int]:
    """Return the amounts of one provider. What has a price of the operator, and unknown cost, adds no margin."""
    amounts = {name: row.get(name, 0) for name in _AMOUNTS}
    own_nanos, net_nanos = amounts["own_price_nanos"], amounts["cost_nanos"] - amounts["refunded_nanos"]
    provider_nanos = amounts["cost_nanos"] - own_nanos
    if row["provider"].startswith(PROVIDER_PREFIX):
        # The seller's, without the commission of today.
        kept_nanos = net_nanos * app_state().settings.payout_commission_bps // earnings.ALL_BPS
        own_nanos, provider_nanos = 0, net_nanos - kept_nanos
    margin_nanos = net_nanos - own_nanos - provider_nanos
    return {**amounts, "own_price_nanos": own_nanos, "provider_nanos": provider_nanos, "margin_nanos": margin_nanos}
