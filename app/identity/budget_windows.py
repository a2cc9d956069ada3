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


def used_in_window(row: Any, now: datetime) -> int:
    """Return what a row has counted in the window of now."""
    start = start_of(row.period, now)
    return 0 if start is not None and start > row.window_start else int(row.used_nanos)
