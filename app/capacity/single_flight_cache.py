"""A single-flight cache: of concurrent requests for a key, one loads the value and the others wait for it.

It is local to the process. Failures are cached too, so that a hanging exchange is not waited for repeatedly.
"""

import copy
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any

from app.errors import ServiceError
from app.ports.errors import PortError

_NS_PER_SECOND = 10**9
_MAX_ENTRIES = 1000


class _Flight(Future[Any]):
    """One load. Its result is valid until `expires_ns`."""

    expires_ns = 0


class SingleFlightCache:
    """A thread-safe cache of loaded values."""

    def __init__(self, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._flights: dict[Hashable, _Flight] = {}

    def drop(self, is_outdated: Callable[[Hashable], bool]) -> None:
        """Load the values of these keys anew when they are next requested."""
        with self._lock:
            for key in [key for key in self._flights if is_outdated(key)]:
                del self._flights[key]

    def get(self, key: Hashable, load: Callable[[], Any], *, ttl_seconds: int, failure_ttl_seconds: int = 2) -> Any:
        """Return a value that is at most `ttl_seconds` old, loading it if necessary.

        Raises: what `load` raised, without another attempt for `failure_ttl_seconds`.
        """
        with self._lock:
            flight, now_ns = self._flights.get(key), self._clock_ns()
            is_leader = flight is None or (flight.done() and now_ns >= flight.expires_ns)
            if flight is None or is_leader:
                # Expired values are dropped, because they may be secrets.
                self._flights = {k: f for k, f in self._flights.items() if not f.done() or now_ns < f.expires_ns}
                if len(self._flights) >= _MAX_ENTRIES:
                    self._flights.clear()
                flight = self._flights[key] = _Flight()
        if is_leader:
            try:
                value = load()
            except (PortError, ServiceError) as failure:
                flight.expires_ns = self._clock_ns() + failure_ttl_seconds * _NS_PER_SECOND
                flight.set_exception(failure)
            except BaseException:
                # An unexpected error is raised in the loading thread; the waiting ones get a plain failure.
                flight.set_exception(ServiceError())
                raise
            else:
                flight.expires_ns = self._clock_ns() + ttl_seconds * _NS_PER_SECOND
                flight.set_result(value)
        failed = flight.exception()
        if isinstance(failed, PortError | ServiceError):
            # A copy per thread, because tracebacks would accumulate on a shared exception.
            raise copy.copy(failed) from failed
        return flight.result()
