"""Faults of the node, set by tests: dropped and late transactions, error statuses, lost and slow responses.

A lost response (`http_after`) is the dangerous one: the request was executed, and the client cannot know.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from solana_node.errors import InvalidParamsError, JsonObject

CLOSE_CONNECTION: Final = 0
"""Instead of an HTTP status: close the connection without a response."""

_WIRE_NAMES: Final = {
    "drop": "drop",
    "delaySlots": "delay_slots",
    "http": "http",
    "httpAfter": "http_after",
    "sleepMs": "sleep_ms",
}


@dataclass(slots=True)
class Faults:
    """The active faults. Counting down is thread-safe."""

    drop: int = 0
    """Number of the next accepted transactions that are dropped."""
    delay_slots: int = 0
    """Delay of every accepted transaction in slots."""
    http: dict[str, list[int]] = field(default_factory=dict)
    """HTTP statuses of the next requests by method, which are not executed."""
    http_after: dict[str, list[int]] = field(default_factory=dict)
    """HTTP statuses of the next requests by method, which are executed before the response is lost."""
    sleep_ms: dict[str, int] = field(default_factory=dict)
    """Delays of requests in milliseconds, by method."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @classmethod
    def from_json(cls, wire: JsonObject) -> "Faults":
        """Parse the parameter of `sandbox_faults`.

        Raises:
            InvalidParamsError: an unknown fault.
        """
        unknown = wire.keys() - _WIRE_NAMES.keys()
        if unknown:
            raise InvalidParamsError(f"unknown faults: {', '.join(sorted(unknown))}")
        return cls(**{_WIRE_NAMES[name]: value for name, value in wire.items()})

    def to_json(self) -> JsonObject:
        """Return the remaining faults as JSON."""
        return {wire: getattr(self, name) for wire, name in _WIRE_NAMES.items()}

    def take_drop(self) -> bool:
        """Return whether to drop this transaction, counting it down."""
        with self._lock:
            if self.drop <= 0:
                return False
            self.drop -= 1
            return True

    def take_status_before(self, methods: Iterable[str]) -> int | None:
        """Take the status to return instead of executing a request for these methods."""
        return self._take(self.http, methods)

    def take_status_after(self, methods: Iterable[str]) -> int | None:
        """Take the status to return instead of the result of a request for these methods."""
        return self._take(self.http_after, methods)

    def delay_seconds(self, methods: Iterable[str]) -> float:
        """Return the delay of a request for these methods."""
        return max((self.sleep_ms.get(method, 0) for method in methods), default=0) / 1000

    def _take(self, queues: dict[str, list[int]], methods: Iterable[str]) -> int | None:
        with self._lock:
            for method in methods:
                if queues.get(method):
                    return queues[method].pop(0)
        return None
