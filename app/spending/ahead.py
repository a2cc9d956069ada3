"""Sums that a clock far ahead has counted: brought back to the present, so that no limit waits for that clock's day.

Days that others counted on are believed one day ahead, for midnight passes at each machine in turn.
"""

from __future__ import annotations

from datetime import date, timedelta

import structlog
from sqlalchemy import func, select, type_coerce, update

from app.core.columns import UtcDateTime
from app.extensions import db
from app.spending import policy
from app.spending.models import HoldState, SpendingAccount, SpendingHold
from app.spending.policy import Spent

_log = structlog.get_logger(__name__)
_BELIEVED = timedelta(days=1)


def present(counted_on: date, today: date) -> date | None:
    """Return the day to count anew on where `counted_on` is not to be believed; None where it is.

    It may be our own clock that is behind: the database's has a say, asked in this rare case only.
    """
    if counted_on <= today + _BELIEVED:
        return None
    told = db.session.scalar(select(type_coerce(func.now(), UtcDateTime)))
    known = today if told is None else max(today, told.date())
    return known if counted_on > known + _BELIEVED else None


def recounted(wallet_id: str, today: date) -> Spent:
    """Add up what counts today by the holds themselves; one that was made on a later day counts as made today."""
    windows = policy.windows(today)
    rows = db.session.execute(
        select(SpendingHold.made_on, func.sum(SpendingHold.amount_nanos).label("nanos"))
        .where(
            SpendingHold.wallet_id == wallet_id,
            SpendingHold.made_on >= min(windows.week.start, windows.month.start),
            SpendingHold.state != HoldState.RELEASED.value,
        )
        .group_by(SpendingHold.made_on)
    )
    spent = Spent()
    for made_on, nanos in rows:
        # PostgreSQL sums BIGINT to NUMERIC.
        counts = policy.carry(policy.add(Spent(), int(nanos)), min(made_on, today), today)
        spent = Spent(spent.day + counts.day, spent.week + counts.week, spent.month + counts.month)
    return spent


def bring_back(wallet_id: str, today: date) -> None:
    """Write what `recounted` says to a locked account, and today as the day of what was held on later ones."""
    spent = recounted(wallet_id, today)
    _log.warning("spending_counted_ahead", wallet_id=wallet_id, today=today.isoformat())
    db.session.execute(
        update(SpendingHold)
        .where(SpendingHold.wallet_id == wallet_id, SpendingHold.made_on > today)
        .values(made_on=today)
        .execution_options(synchronize_session=False)
    )
    db.session.execute(
        update(SpendingAccount)
        .where(SpendingAccount.wallet_id == wallet_id)
        .values(counted_on=today, day_nanos=spent.day, week_nanos=spent.week, month_nanos=spent.month)
        .execution_options(synchronize_session=False)
    )
