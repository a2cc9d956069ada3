"""What an account was granted on each day. Works in a reading unit."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import func, select

from app.core.days import day_of, utc_day
from app.credits.models import CreditPosting
from app.credits.postings import Bucket, Kind
from app.extensions import db


def granted_since(account_id: str, start: datetime) -> dict[date, int]:
    """Return the nano-dollars granted on each UTC day since an instant, by day."""
    day = utc_day(CreditPosting.created_at, dialect=db.session.get_bind().dialect.name)
    rows = db.session.execute(
        select(day, func.sum(CreditPosting.amount_nanos))
        .where(
            CreditPosting.account_id == account_id,
            CreditPosting.kind == Kind.GRANT.value,
            CreditPosting.credit == Bucket.AVAILABLE.value,
            CreditPosting.created_at >= start,
        )
        .group_by(day)
    )
    return {day_of(of): int(nanos) for of, nanos in rows}
