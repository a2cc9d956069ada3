"""How misses become locks. Pure: a counter and an instant in, a counter out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

SERVICE_WIDE_MISSES = 300
SERVICE_WIDE_WINDOW = timedelta(hours=1)
LONGEST_LOCK = timedelta(days=1)
FORGIVEN_AFTER = timedelta(days=1)
"""So long after the end of a lock, the next one is a first one again."""


@dataclass(frozen=True, slots=True)
class MissLimit:
    """So many misses of one client address in so long."""

    misses: int
    window: timedelta


@dataclass(frozen=True, slots=True)
class Counter:
    """The misses of one client address."""

    window_start: datetime
    misses: int = 0
    locked_until: datetime | None = None
    strikes: int = 0

    def seconds_locked(self, now: datetime) -> int:
        """Return how long the address is still locked, rounded up; 0 when it is not."""
        if self.locked_until is None or self.locked_until <= now:
            return 0
        return -(-(self.locked_until - now) // timedelta(seconds=1))


def after_miss(counter: Counter, limit: MissLimit, now: datetime) -> Counter:
    """Count a miss; the last one allowed in a window locks, each time twice as long as the time before."""
    if now >= counter.window_start + limit.window:
        counter = replace(counter, window_start=now, misses=0)
    if counter.locked_until is not None and now >= counter.locked_until + FORGIVEN_AFTER:
        counter = replace(counter, strikes=0)
    counter = replace(counter, misses=counter.misses + 1)
    if counter.misses < limit.misses:
        return counter
    # Bounded before it is multiplied: 2 ** strikes soon passes what a timedelta holds.
    lock = min(limit.window * 2 ** min(counter.strikes, 16), LONGEST_LOCK)
    return replace(counter, window_start=now, misses=0, locked_until=now + lock, strikes=counter.strikes + 1)
