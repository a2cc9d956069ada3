"""UTC days in statements, the same on both databases."""

from __future__ import annotations

from datetime import date
from typing import Any

from sqlalchemy import ColumnElement, func
from sqlalchemy.orm import InstrumentedAttribute


def utc_day(instant: InstrumentedAttribute[Any], *, dialect: str) -> ColumnElement[Any]:
    """Return the UTC day of an instant's column; read what comes out with `day_of`."""
    if dialect == "sqlite":
        return func.date(instant)
    # date() uses the session's time zone, which an operator may have set.
    return func.date(func.timezone("UTC", instant))


def day_of(value: Any) -> date:
    """Read a day as a database returns it: SQLite has no dates."""
    return value if isinstance(value, date) else date.fromisoformat(str(value))
