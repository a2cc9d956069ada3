"""The current time, as aware datetimes in UTC."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> datetime:
    """Return the current instant in UTC."""
    return datetime.now(UTC)


def isoformat(moment: datetime) -> str:
    """Write an instant as ISO 8601 with millisecond precision and a `Z` suffix."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
