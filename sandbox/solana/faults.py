"""Faults a test asks of the node: dropped and late transactions, error statuses, lost answers, slow answers.

A lost answer (`http_after`) is the dangerous one: the request was carried out and the caller cannot know.
"""

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sandbox.solana.errors import InvalidParamsError, JsonObject

CLOSE_CONNECTION: Final = 0
"""In place of an HTTP status: close the connection and answer nothing."""

_WIRE_NAMES: Final = {
    "drop": "drop",
    "delaySlots": "delay_slots",
    "http": "http",
    "httpAfter": "http_after",
    "sleepMs": "sleep_ms",
}


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on; empty means nothing does. Thread-safe where it counts down."""

    drop: int = 0
    """How many of the next accepted transactions vanish without a trace."""
    delay_slots: int = 0
    """How many slots later every accepted transaction lands."""
    http: dict[str, list[int]] = field(default_factory=dict)
    """Method to the HTTP statuses of its next requests, which are not carried out."""
    http_after: dict[str, list[int]] = field(default_factory=dict)
    """Method to the HTTP statuses of its next requests, which are carried out before the answer is lost."""
    sleep_ms: dict[str, int] = field(default_factory=dict)
    """Method to the milliseconds each of its requests waits first."""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @classmethod
    def from_json(cls, wire: JsonObject) -> "Faults":
        """Read the parameter of `sandbox_faults`.

        Raises:
            InvalidParamsError: a name that is no fault.
        """
        unknown = wire.keys() - _WIRE_NAMES.keys()
        if unknown:
            raise InvalidParamsError(f"unknown faults: {', '.join(sorted(unknown))}")
        return cls(**{_WIRE_NAMES[name]: value for name, value in wire.items()})

    def to_json(self) -> JsonObject:
        """Write the faults still to come."""
        return {wire: getattr(self, name) for wire, name in _WIRE_NAMES.items()}

    def take_drop(self) -> bool:
        """Count down one dropped transaction and tell whether this one is it."""
        with self._lock:
            if self.drop <= 0:
                return False
            self.drop -= 1
            return True

    def take_status_before(self, methods: Iterable[str]) -> int | None:
        """Take the status to answer instead of carrying out a request for these methods."""
        return self._take(self.http, methods)

    def take_status_after(self, methods: Iterable[str]) -> int | None:
        """Take the status to answer in place of the result of a request for these methods."""
        return self._take(self.http_after, methods)

    def delay_seconds(self, methods: Iterable[str]) -> float:
        """Tell how long a request for these methods waits before anything happens."""
        return max((self.sleep_ms.get(method, 0) for method in methods), default=0) / 1000

    def _take(self, queues: dict[str, list[int]], methods: Iterable[str]) -> int | None:
        with self._lock:
            for method in methods:
                if queues.get(method):
                    return queues[method].pop(0)
        return None
