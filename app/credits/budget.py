"""The budget of the whole service for credits that are handed out unasked, per UTC day.

Alone writes `grant_budgets`. Its row is shared by all registrations of a day: take from it last in a unit.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from sqlalchemy import update

from app.core import clock
from app.core.tables import table_of
from app.credits import postings
from app.credits.models import GrantBudget
from app.errors import RateLimited
from app.extensions import db


def take(nanos: int, *, limit_nanos: int | None, now: datetime | None = None) -> None:
    """Take an amount out of today's budget; a limit of None means that there is no budget to keep.

    Raises: RateLimited until midnight UTC when less than the amount is left.
    """
    if limit_nanos is None or not nanos:
        return
    now = now or clock.now()
    if _add(nanos, limit_nanos, now):
        return
    # Whoever loses the race for the day's first row tries again on the winner's.
    postings.insert_once(table_of(GrantBudget).c.day, {"day": now.date(), "granted_nanos": 0})
    if _add(nanos, limit_nanos, now):
        return
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
    raise RateLimited(
        "The service has given out all its free credits for today; try again after midnight UTC.",
        retry_after_seconds=int((midnight - now).total_seconds()) + 1,
    )


def _add(nanos: int, limit_nanos: int, now: datetime) -> bool:
    added = db.session.execute(
        update(GrantBudget)
        .where(GrantBudget.day == now.date(), GrantBudget.granted_nanos <= limit_nanos - nanos)
        .values(granted_nanos=GrantBudget.granted_nanos + nanos)
        .returning(GrantBudget.day)
        .execution_options(synchronize_session=False)
    )
    return added.first() is not None
