"""The current time, as aware datetimes in UTC."""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

_MAX_TIME_DIGITS = 13
_MIN_TIMESTAMP = 10**9
"""Larger numbers are times since 1970, not seconds from now."""
_MS_PER_SECOND = 1000


def now() -> datetime:
    return datetime.now(UTC)


def isoformat(moment: datetime) -> str:
    """Write an instant as ISO 8601 with millisecond precision and a `Z` suffix."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds_until(text: str) -> int | None:
    """Return how long a header such as `Retry-After` asks to wait, None if it is malformed.

    RFC 9110, 10.2.3: a number of seconds or a date. Other headers have a time in seconds or milliseconds since 1970.
    """
    text = text.strip()
    try:
        if text.isascii() and text.isdigit() and len(text) <= _MAX_TIME_DIGITS:
            number = int(text)
            if number < _MIN_TIMESTAMP:
                return number
            is_seconds = number < _MIN_TIMESTAMP * _MS_PER_SECOND
            until = datetime.fromtimestamp(number if is_seconds else number / _MS_PER_SECOND, UTC)
        else:
            until = parsedate_to_datetime(text)
            until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None
    return max(0, math.ceil((until - now()).total_seconds()))
