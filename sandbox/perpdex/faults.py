"""Faults that are asked of the stand-in: error statuses, foreign bodies, slow answers, answers that never come."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

ANY = "*"
_MAX_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens to a question of some type (`*`: any): a status with a body, after a time; `hangs` never answers.

    `status` None answers as usual, but late.
    """

    type: str = ANY
    status: int | None = None
    body: str = ""
    seconds: float = 0
    hangs: bool = False
    times: int = 1

    @classmethod
    def from_json(cls, document: Any) -> Fault:
        """Read what `POST /faults` sends. Raises: ValueError."""
        known = {
            "type": str,
            "status": int,
            "body": str,
            "seconds": (int, float),
            "hangs": bool,
            "times": int,
        }
        if not isinstance(document, dict) or not document.keys() <= known.keys():
            raise ValueError(f"a fault is an object of {', '.join(known)}")
        wrong = [name for name, value in document.items() if not isinstance(value, known[name])]  # type: ignore[arg-type]
        if wrong:
            raise ValueError(f"{', '.join(wrong)}: of another kind")
        fault = cls(**document)
        if not 0 <= fault.seconds <= _MAX_SECONDS or (fault.status or 200) not in range(100, 600):
            raise ValueError("seconds: 0 to 600; status: 100 to 599")
        return fault


@dataclass(slots=True)
class Faults:
    """The faults still to come; usable from many threads."""

    _waiting: list[tuple[Fault, int]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> None:
        """Let a fault hit the next `times` questions of its type."""
        with self._lock:
            self._waiting.append((fault, fault.times))

    def clear(self) -> None:
        """Take all faults back."""
        with self._lock:
            self._waiting.clear()

    def take(self, kind: str | None) -> Fault | None:
        """Return the fault that hits a question, and count it."""
        with self._lock:
            for place, (fault, left) in enumerate(self._waiting):
                if fault.type in {ANY, kind}:
                    if left > 1:
                        self._waiting[place] = (fault, left - 1)
                    else:
                        del self._waiting[place]
                    return fault
        return None
