"""The daily budget of the whole service for automatic grants.

The only writer of `grant_budgets`. All registrations of a day share its row: consume from it last in a unit.
"""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta

from sqlalchemy import BigInteger, bindparam, update
from sqlalchemy.orm import Session

from app.core import clock
from app.credits.models import GrantBudget
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.statements import table_of
from app.errors import RateLimited

_INSERT = PreparedInsert(GrantBudget, unique=[GrantBudget.day])
_ADD = PreparedStatement(
    update(table_of(GrantBudget))
    .where(GrantBudget.day == bindparam("today"), GrantBudget.granted_nanos <= bindparam("maximum"))
    .values({GrantBudget.granted_nanos: GrantBudget.granted_nanos + bindparam("nanos", type_=BigInteger)})
)


def consume(session: Session, nanos: int, *, limit_nanos: int | None, now: datetime | None = None) -> None:
    """Consume an amount of today's budget; a limit of None means unlimited.

    Raises: RateLimited until midnight UTC if less than the amount is left.
    """
    if limit_nanos is None or not nanos:
        return
    now = now or clock.now()
    if _add(session, nanos, limit_nanos, now):
        return
    # If a concurrent unit inserts the first row of the day, retry on that row.
    _INSERT.execute(session, {"day": now.date(), "granted_nanos": 0})
    if _add(session, nanos, limit_nanos, now):
        return
    midnight = datetime.combine(now.date() + timedelta(days=1), time(), UTC)
    raise RateLimited(
        "The service has granted all of its free credits for today; try again after midnight UTC.",
        retry_after_seconds=int((midnight - now).total_seconds()) + 1,
    )


def _add(session: Session, nanos: int, limit_nanos: int, now: datetime) -> bool:
    return bool(_ADD.execute(session, {"today": now.date(), "nanos": nanos, "maximum": limit_nanos - nanos}))
