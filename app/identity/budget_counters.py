"""Counters of budgets: those that several share, and those of keys with limits (decision 0156).

Whoever spends locks the counters first (`lock`) and adds to them in the same unit (`add`). What was not spent is
returned without a lock, as a row (`give_back`), which is subtracted by the next function that locks the counter; one
that waits for the lock may miss it, which is safe. The only writer of the counters, beside the statements of
`app.usage.step_statements`, which leave such rows alone.

Windows are in UTC: a day, a week from Monday, a calendar month, or none that ends.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import and_, case, delete, exists, insert, or_, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.db import lock_order
from app.db.tables import table_of
from app.identity.models import ApiKey, BudgetCounter, BudgetReturn

PERCENTAGES = (50, 80, 95, 100)
"""The shares of a budget that are announced when they are used."""
_TABLE, _RETURNS = table_of(BudgetCounter), table_of(BudgetReturn)


def start_of(period: str, at: datetime) -> datetime | None:
    """Return when the window of a budget began; None for one that never begins anew."""
    day = at.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    starts = {"day": day, "week": day - timedelta(days=day.weekday()), "month": day.replace(day=1)}
    return starts.get(period)


def resets_at(period: str, at: datetime) -> datetime | None:
    """Return when the window of a budget ends; None for one that never begins anew."""
    start = start_of(period, at)
    # A day, a week, or more than any month: the start of the next window.
    return None if start is None else start_of(period, start + timedelta(days={"day": 1, "week": 7}.get(period, 32)))


def create(session: Session, budget_id: str, limit_nanos: int | None, period: str) -> None:
    now = clock.now()
    begins = start_of(period, now) or now
    session.add(BudgetCounter(id=budget_id, limit_nanos=limit_nanos, period=period, window_start=begins))
    session.flush()


def change(session: Session, budget_id: str, limit_nanos: int | None) -> None:
    """Follow a change of a budget's limit, from what is spent next; what is used of it is announced anew."""
    lock(session, [budget_id])
    anew = {"announced_percent": 0} if used(session, [budget_id])[budget_id] else {}
    session.execute(_changed(budget_id, limit_nanos=limit_nanos, **anew))


def remove(session: Session, budget_id: str) -> None:
    # In the order of `lock`.
    session.execute(delete(_TABLE).where(_TABLE.c.id == budget_id))
    session.execute(delete(_RETURNS).where(_RETURNS.c.budget_id == budget_id))


def lock(session: Session, budget_ids: Collection[str]) -> None:
    """Lock counters in the order of their ids until the unit ends, and subtract what was returned to them."""
    lock_order.lock_rows(session, BudgetCounter.id, BudgetCounter.id.in_(budget_ids))
    taken, now = delete(_RETURNS).where(_RETURNS.c.budget_id.in_(budget_ids)), clock.now()
    returned = _by_budget(session.execute(taken.returning(*_RETURNS.c)).all())
    for row in read(session, list(returned)):
        _add(session, row, -_in_window(row, returned, now), now)


def read(session: Session, budget_ids: Collection[str]) -> list[Any]:
    """Return counters in the order of their ids, which may still count what was returned."""
    query = select(_TABLE).where(_TABLE.c.id.in_(budget_ids)).order_by(_TABLE.c.id)
    return list(session.execute(query)) if budget_ids else []


def used(session: Session, budget_ids: Collection[str]) -> dict[str, int]:
    """Return what budgets count in the window of now, without what was returned."""
    return {budget_id: nanos for budget_id, (nanos, _) in _counted(session, read(session, budget_ids)).items()}


def counted(session: Session) -> dict[str, tuple[int, datetime]]:
    """Return what each budget counts, and since when. For audits."""
    return _counted(session, session.execute(select(_TABLE)).all())


def add(session: Session, budget_ids: Collection[str], nanos: int) -> None:
    """Add what is held or spent to locked counters."""
    for row in read(session, budget_ids):
        _add(session, row, nanos, clock.now())


def give_back(session: Session, budget_ids: Iterable[str], nanos: int, *, held_at: datetime) -> None:
    """Return what was held at an instant and is not spent; a negative amount was spent beyond what was held."""
    rows = [{"budget_id": each, "nanos": nanos, "held_at": held_at} for each in budget_ids]
    if rows and nanos:
        session.execute(insert(_RETURNS), rows)


def subtract_returns(session: Session) -> None:
    """Subtract all that was returned, and drop what was returned to budgets that no longer exist."""
    lock(session, session.scalars(select(_RETURNS.c.budget_id).distinct()).all())


def due_for_announcement(session: Session) -> Sequence[str]:
    """Return budgets, but for those of revoked keys, that may have reached another of `PERCENTAGES` than announced."""
    # Exact, and in two parts, so that no product exceeds a BIGINT.
    share, rest = _TABLE.c.limit_nanos // 100, _TABLE.c.limit_nanos % 100
    needed = {each: share * each + (rest * each + 99) // 100 for each in PERCENTAGES}
    shares = (and_(_TABLE.c.used_nanos >= needed[each], _TABLE.c.announced_percent < each) for each in PERCENTAGES)
    is_used = _TABLE.c.limit_nanos > 0, _TABLE.c.used_nanos > 0, or_(*shares)
    is_revoked = exists().where(ApiKey.id == _TABLE.c.id, ApiKey.revoked_at.is_not(None))
    return session.scalars(select(_TABLE.c.id).where(*is_used, ~is_revoked).limit(500)).all()


def mark_reached(session: Session, budget_id: str) -> tuple[int, int] | None:
    """Store the highest percentage that a budget has reached; return it and what is used, None if it is known.

    That is in the window in which it was reached, which may just have ended.
    """
    lock(session, [budget_id])
    for row in read(session, [budget_id]):
        limit_nanos, used = row.limit_nanos, row.used_nanos * 100
        reached = max((each for each in PERCENTAGES if limit_nanos and used >= limit_nanos * each), default=0)
        if reached > row.announced_percent:
            session.execute(_changed(budget_id, announced_percent=reached))
            return reached, row.used_nanos
    return None


def _counted(session: Session, rows: Collection[Any]) -> dict[str, tuple[int, datetime]]:
    now, returns = clock.now(), select(_RETURNS).where(_RETURNS.c.budget_id.in_([row.id for row in rows]))
    returned = _by_budget(session.execute(returns).all() if rows else ())
    return {
        row.id: (max(0, _used_in_window(row, now) - _in_window(row, returned, now)), _start_of_window(row, now))
        for row in rows
    }


def _by_budget(returns: Iterable[Any]) -> dict[str, list[Any]]:
    by_budget: dict[str, list[Any]] = defaultdict(list)
    for each in returns:
        by_budget[each.budget_id].append(each)
    return by_budget


def _in_window(row: Any, returned: Mapping[str, Collection[Any]], now: datetime) -> int:
    """Return the sum of what was returned to a budget, but for what was held in an earlier window."""
    start = None if row.period == "total" else _start_of_window(row, now)
    return sum(each.nanos for each in returned.get(row.id, ()) if start is None or start <= each.held_at)


def _start_of_window(row: Any, now: datetime) -> datetime:
    """Return when the window of a counter began in which now is; it may have counted in an earlier one only."""
    start: datetime = max(row.window_start, start_of(row.period, now) or row.window_start)
    return start


def _used_in_window(row: Any, now: datetime) -> int:
    return 0 if _start_of_window(row, now) > row.window_start else int(row.used_nanos)


def _add(session: Session, row: Any, nanos: int, now: datetime) -> None:
    start = _start_of_window(row, now)
    announced_percent = case((_TABLE.c.window_start == start, _TABLE.c.announced_percent), else_=0)
    values = {"used_nanos": _used_in_window(row, now) + nanos, "window_start": start}
    session.execute(_changed(row.id, **values, announced_percent=announced_percent))


def _changed(budget_id: str, **values: Any) -> Any:
    return update(_TABLE).where(_TABLE.c.id == budget_id).values(**values)
