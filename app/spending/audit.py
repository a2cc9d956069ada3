"""Audit of the spending sums: an account, and a session, counts the sum of its held and spent holds."""

from datetime import date, datetime, timedelta
from itertools import groupby
from uuid import UUID

from sqlalchemy import and_, bindparam, func, select
from sqlalchemy.orm import Session

from app.core import clock
from app.spending import policy
from app.spending.holds import SpendingHoldState
from app.spending.models import ApprovedPayee, SpendingAccount, SpendingControls, SpendingHold, SpendingSession
from app.spending.policy import WindowTotals

_ACCOUNTS_PER_PAGE = 1000
_BEFORE_ALL = str(UUID(int=0))


# A page of accounts with their sums, one row for each day that has holds. Sums counted before `oldest_count` no longer
# count.
_accounts = select(SpendingAccount).order_by(SpendingAccount.wallet_id).limit(_ACCOUNTS_PER_PAGE)
_page = _accounts.where(
    SpendingAccount.counted_on >= bindparam("oldest_count"), SpendingAccount.wallet_id > bindparam("after")
).subquery()
_IS_COUNTED = SpendingHold.state != SpendingHoldState.RELEASED.value
_of_page = SpendingHold.wallet_id.in_(select(_page.c.wallet_id)), SpendingHold.made_on >= bindparam("oldest_hold")
_per_day = (
    select(SpendingHold.wallet_id, SpendingHold.made_on, func.sum(SpendingHold.amount_nanos).label("amount_nanos"))
    .where(*_of_page, _IS_COUNTED, SpendingHold.paid_by_credits.is_(False))
    .group_by(SpendingHold.wallet_id, SpendingHold.made_on)
    .subquery()
)
_TOTALS_AND_HOLDS = (
    select(_page, _per_day.c.made_on, _per_day.c.amount_nanos)
    .outerjoin(_per_day, _per_day.c.wallet_id == _page.c.wallet_id)
    .order_by(_page.c.wallet_id)
)
_ORPHANS = {
    table.__tablename__: select(func.count())
    .select_from(table)
    .outerjoin(SpendingAccount, SpendingAccount.wallet_id == table.wallet_id)
    .where(SpendingAccount.wallet_id.is_(None))
    for table in (SpendingControls, SpendingHold, SpendingSession, ApprovedPayee)
}
# Retention keeps holds for two months at least.
_SESSION_LOOKBACK = timedelta(days=60)
_of_session = SpendingHold.wallet_id == SpendingSession.wallet_id, SpendingHold.session_id == SpendingSession.id
_session_holds = func.coalesce(func.sum(SpendingHold.amount_nanos), 0)
_WRONG_SESSIONS = (
    select(SpendingSession.id, SpendingSession.counted_nanos, _session_holds.label("held_nanos"))
    .outerjoin(SpendingHold, and_(*_of_session, SpendingHold.made_on >= bindparam("since_day"), _IS_COUNTED))
    .where(SpendingSession.created_at >= bindparam("since"))
    .group_by(SpendingSession.id, SpendingSession.counted_nanos)
    .having(SpendingSession.counted_nanos != _session_holds)
)
_WRONG_CONTROLS = (
    select(SpendingAccount.wallet_id)
    .outerjoin(SpendingControls, SpendingControls.wallet_id == SpendingAccount.wallet_id)
    .where(func.coalesce(SpendingControls.version, 0) != SpendingAccount.controls_version)
)


def check(session: Session, now: datetime | None = None) -> list[str]:
    """Return one sentence per violated invariant.

    Reads accounts with current windows and their holds by day, a thousand at a time, sessions of the last two months,
    and orphans in three more queries.
    """
    now = now or clock.now()
    since = now - _SESSION_LOOKBACK
    days = {"since": since, "since_day": since.date() - timedelta(days=1)}
    orphans = {name: session.scalar(statement) for name, statement in _ORPHANS.items()}
    sessions, controls = session.execute(_WRONG_SESSIONS, days), session.scalars(_WRONG_CONTROLS)
    return [
        *_wrong_sums(session, now.date()),
        *(f"session {row.id} counts {row.counted_nanos}, its holds are {row.held_nanos}" for row in sessions),
        *(f"{rows} rows of {name} belong to no account" for name, rows in orphans.items() if rows),
        *(f"the controls of wallet {each} were deleted, or are an older version" for each in controls),
    ]


def _wrong_sums(session: Session, today: date) -> list[str]:
    violations: list[str] = []
    oldest_count = _earliest(today)
    days = {"oldest_count": oldest_count, "oldest_hold": _earliest(oldest_count)}
    last = _BEFORE_ALL
    # One statement per page bounds memory and keeps no cursor open on the server.
    while rows := session.execute(_TOTALS_AND_HOLDS, {**days, "after": last}).all():
        for wallet_id, group in groupby(rows, key=lambda row: row.wallet_id):
            expected = WindowTotals()
            for row in group:
                counted = WindowTotals(row.day_nanos, row.week_nanos, row.month_nanos)
                if row.made_on is None:
                    continue
                if row.made_on > row.counted_on:
                    violations.append(f"wallet {wallet_id} has holds of {row.made_on}, after {row.counted_on}")
                # PostgreSQL sums BIGINT to NUMERIC.
                expected = expected.plus(policy.in_windows(int(row.amount_nanos), row.made_on, row.counted_on))
            if counted != expected:
                violations.append(f"wallet {wallet_id} counts {counted}, its holds are {expected}")
        last = rows[-1].wallet_id
    return violations


def _earliest(day: date) -> date:
    """Return the first day that any window of a day contains."""
    windows = policy.windows(day)
    return min(windows.week.start, windows.month.start)
