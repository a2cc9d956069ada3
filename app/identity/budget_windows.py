"""The windows of budgets, in UTC: a day, a week from Monday, a calendar month, or none that ends."""

from datetime import UTC, datetime, timedelta
from typing import Any

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
