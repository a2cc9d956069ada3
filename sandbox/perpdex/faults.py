"""Faults of the stand-in: error statuses, other bodies, slow responses, no response."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

ANY = "*"
_MAX_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault for a request type (`*`: any): a status with a body, after a delay; `hangs` never answers.

    `status` None answers as usual after the delay.
    """

    type: str = ANY
    status: int | None = None
    body: str = ""
    seconds: float = 0
    hangs: bool = False
    times: int = 1

    @classmethod
    def from_json(cls, document: Any) -> Fault:
        """Parse the body of `POST /faults`. Raises: ValueError."""
        known = {"type": str, "status": int, "body": str, "seconds": (int, float), "hangs": bool, "times": int}
        if not isinstance(document, dict) or not document.keys() <= known.keys():
            raise ValueError(f"a fault is an object of {', '.join(known)}")
        wrong = [name for name, value in document.items() if not isinstance(value, known[name])]  # type: ignore[arg-type]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: wrong type")
        fault = cls(**document)
        if not 0 <= fault.seconds <= _MAX_SECONDS or (fault.status or 200) not in range(100, 600):
            raise ValueError("seconds: 0 to 600; status: 100 to 599")
        return fault


@dataclass(slots=True)
class Faults:
    """The remaining faults; thread-safe."""

    _waiting: list[tuple[Fault, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> None:
        """Apply a fault to the next `times` requests of its type."""
        with self._lock:
            self._waiting.append((fault, fault.times))

    def clear(self) -> None:
        """Remove all faults."""
        with self._lock:
            self._waiting.clear()

    def take(self, kind: str | None) -> Fault | None:
        """Return the fault that applies to a request, and count it."""
        with self._lock:
            for place, (fault, left) in enumerate(self._waiting):
                if fault.type in {ANY, kind}:
                    if left > 1:
                        self._waiting[place] = (fault, left - 1)
                    else:
                        del self._waiting[place]
                    return fault
        return None
