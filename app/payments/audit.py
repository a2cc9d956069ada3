"""Proof of payments: what top-ups granted is what the ledger has, and no payment can be taken a second time."""

from __future__ import annotations

from sqlalchemy import select

from app.core.chains import USDC
from app.core.money import NANOS_PER_USD
from app.credits import service as credits_service
from app.extensions import db
from app.payments import claims, topups
from app.payments.models import TopUp

_NANOS_PER_UNIT = NANOS_PER_USD // 10**USDC.decimals


def check() -> list[str]:
    """Return one sentence per violated invariant, none when all is well. Works in a reading unit."""
    return [*_wrong_grants(), *_unclaimed()]


def _wrong_grants() -> list[str]:
    closed = db.session.scalars(select(TopUp).where(TopUp.closed_at.is_not(None))).all()
    recorded = {
        topups.reference_of(row.transaction_id): (row.account_id, row.granted_nanos)
        for row in closed
        if row.granted_nanos
    }
    granted = credits_service.grants_by_reference(topups.REFERENCE)
    wrong = [
        f"{reference}: recorded are {recorded.get(reference)}, the ledger has {granted.get(reference)}"
        for reference in sorted(recorded.keys() | granted.keys())
        if recorded.get(reference) != granted.get(reference)
    ]
    beyond = [row for row in closed if (row.granted_nanos or 0) > row.units * _NANOS_PER_UNIT]
    return [
        *wrong,
        *(f"top-up {row.transaction_id} granted more than was moved" for row in beyond),
        *(
            f"top-up {each} has arrived for good and granted nothing"
            for each in topups.confirmed_for_nothing()
        ),
    ]


def _unclaimed() -> list[str]:
    return [f"payment {payment_id} has no claim" for payment_id in claims.claimless()]
