"""Payments from before the database was set back count no more: what they were used for may be among what was lost.

A claim makes a payment count once, for ever; a restored database lacks those that were taken after its backup. What
lands after the horizon was claimed by nobody. Alone writes `payment_horizons`.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import select

from app.extensions import db
from app.payments import claims
from app.payments.models import PaymentHorizon

_THE_ONE = 1


def drawn_at() -> datetime | None:
    """Return since when payments count, None where all do. In the current unit."""
    return db.session.scalar(select(PaymentHorizon.drawn_at).where(PaymentHorizon.id == _THE_ONE))


def draw(now: datetime) -> int:
    """Let nothing that was paid before this instant pay for another call; return how many open payments that ends.

    In the current unit.
    """
    db.session.merge(PaymentHorizon(id=_THE_ONE, drawn_at=now))
    return claims.use_up_open()
