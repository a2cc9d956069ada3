"""The windows of budgets, in UTC: a day, a week from Monday, a calendar month, or none that ends."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, case, or_, update
from sqlalchemy.orm import Session

PERCENTAGES = (50, 80, 95, 100)
"""The shares of a budget that are announced when they are used."""


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


def start_of_window(row: Any, now: datetime) -> datetime:
    """Return when the window of a row began in which now is; the row may have counted in an earlier one only."""
    start: datetime = max(row.window_start, start_of(row.period, now) or row.window_start)
    return start


def used_in_window(row: Any, now: datetime) -> int:
    """Return what a row has counted in the window of now."""
    return 0 if start_of_window(row, now) > row.window_start else int(row.used_nanos)


def add(session: Session, model: Any, row: Any, nanos: int, now: datetime) -> None:
    """Add to what a locked row of a table has counted, in the window of now."""
    start = start_of_window(row, now)
    announced_percent = case((model.window_start == start, model.announced_percent), else_=0)
    values = {"used_nanos": used_in_window(row, now) + nanos, "window_start": start}
    changed = update(model).where(model.id == row.id).values(**values, announced_percent=announced_percent)
    session.execute(changed, execution_options={"synchronize_session": False})


def may_have_reached(model: Any) -> ColumnElement[bool]:
    """Return the condition that a budget may have reached another of `PERCENTAGES` than was announced."""
    # Rounded down, so that no product exceeds a BIGINT; `mark_reached` is exact.
    share = model.limit_nanos // 100
    return or_(*(and_(model.used_nanos >= share * each, model.announced_percent < each) for each in PERCENTAGES))


def mark_reached(row: Any) -> int | None:
    """Store the highest percentage that the budget of a locked row has reached, and return it; None if it is known."""
    used = row.used_nanos * 100
    reached = max((each for each in PERCENTAGES if row.limit_nanos and used >= row.limit_nanos * each), default=0)
    if reached <= row.announced_percent:
        return None
    row.announced_percent = reached
    return reached
