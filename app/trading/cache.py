"""Answers that many callers share for a moment. Of those who ask for the same, one asks and the others wait for it.

It lives in this process and may be empty at any time; failures are shared, too, so that an exchange that hangs
is waited for once and not by everybody in turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from app.errors import ServiceError

_NS_PER_SECOND = 10**9
_MAX_ENTRIES = 1000


@dataclass(slots=True)
class _Flight:
    """One asking and its end; `until_ns` is when it stops being the answer."""

    landed: threading.Event = field(default_factory=threading.Event)
    until_ns: int = 0
    value: Any = None
    failure: ServiceError | None = None


class Cache:
    """Values by key; usable from many threads."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Take a clock that never goes back."""
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def get(
        self, key: Hashable, ask: Callable[[], Any], *, fresh_seconds: int, retry_seconds: int = 2
    ) -> Any:
        """Return a value that is at most `fresh_seconds` old, asking for it where there is none.

        Raises: what `ask` raised, for `retry_seconds` without asking again.
        """
        flight, is_mine = self._join(key)
        if is_mine:
            self._fly(flight, ask, fresh_seconds=fresh_seconds, retry_seconds=retry_seconds)
        else:
            flight.landed.wait()
        if flight.failure is not None:
            raise _copy(flight.failure)
        return flight.value

    def _join(self, key: Hashable) -> tuple[_Flight, bool]:
        with self._lock:
            now_ns = self._clock_ns()
            flight = self._flights.get(key)
            if flight is not None and (not flight.landed.is_set() or now_ns < flight.until_ns):
                return flight, False
            if len(self._flights) >= _MAX_ENTRIES:
                self._flights = {
                    other: one
                    for other, one in self._flights.items()
                    if not one.landed.is_set() or now_ns < one.until_ns
                }
            flight = self._flights[key] = _Flight()
            return flight, True

    def _fly(
        self, flight: _Flight, ask: Callable[[], Any], *, fresh_seconds: int, retry_seconds: int
    ) -> None:
        kept_seconds = 0
        try:
            flight.value = ask()
            kept_seconds = fresh_seconds
        except ServiceError as failure:
            flight.failure = failure
            kept_seconds = retry_seconds
        except BaseException:
            # A defect is the asker's own; those who wait are told that there is no answer.
            flight.failure = ServiceError()
            raise
        finally:
            flight.until_ns = self._clock_ns() + kept_seconds * _NS_PER_SECOND
            flight.landed.set()


def _copy(failure: ServiceError) -> ServiceError:
    # Each thread raises an exception of its own: tracebacks would grow on a shared one.
    return type(failure)(
        failure.message, details=failure.details, retry_after_seconds=failure.retry_after_seconds
    )
