"""What an account used on each day. Works in a reading unit."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime

from sqlalchemy import func, select

from app.core.days import day_of, utc_day
from app.extensions import db
from app.usage.models import UsageLog


@dataclass(frozen=True, slots=True)
class DayOfUse:
    """The calls of one UTC day and what they cost."""

    day: date
    calls: int
    cost_nanos: int


def since(account_id: str, start: datetime) -> list[DayOfUse]:
    """Return the days with calls since an instant, the oldest first; reads the log's lines of that time."""
    day = utc_day(UsageLog.created_at, dialect=db.session.get_bind().dialect.name)
    rows = db.session.execute(
        select(day, func.count(), func.sum(UsageLog.cost_nanos))
        .where(UsageLog.account_id == account_id, UsageLog.created_at >= start)
        .group_by(day)
        .order_by(day)
    )
    return [DayOfUse(day_of(of), calls, int(nanos)) for of, calls, nanos in rows]
