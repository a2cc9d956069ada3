"""An attempt to deliver an event, and what is sent of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from app.core import clock

_SLOW_MILLISECONDS = 3000


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt to deliver: the status code, or why there was none."""

    at: datetime
    milliseconds: int
    status_code: int | None = None
    error: str | None = None
    answer: str = ""
    retry_after: timedelta | None = None
    is_unexpected: bool = False
    """Whether it failed in this service: other events may succeed."""
    is_gone: bool = False
    """Whether the target wants no more events."""

    @property
    def is_delivered(self) -> bool:
        """Return whether the target accepted the event."""
        return self.status_code is not None and HTTPStatus.OK <= self.status_code < HTTPStatus.MULTIPLE_CHOICES

    @property
    def is_unanswered(self) -> bool:
        """Return whether the target did not answer, so that other events would not be, either."""
        return self.status_code is None and not self.is_unexpected

    @property
    def holds_up(self) -> bool:
        """Return whether it failed after keeping the thread waiting, so that the target is left alone for a while."""
        is_slow = not self.is_delivered and self.milliseconds > _SLOW_MILLISECONDS
        return self.is_unanswered or is_slow

    def as_json(self) -> dict[str, Any]:
        return {
            "at": clock.isoformat(self.at),
            "status_code": self.status_code,
            "error": self.error,
            "duration_ms": self.milliseconds,
            "answer": self.answer,
        }


def counts_of(events: Sequence[Any]) -> dict[str, int]:
    """Return how many events there are of each type, in the order of their first one."""
    return dict(Counter(event.type for event in events))


def payload(event: Any) -> dict[str, Any]:
    """Return an event as clients read it and as it is delivered."""
    return {
        "id": event.id,
        "type": event.type,
        "timestamp": clock.isoformat(event.created_at),
        "agent_id": event.agent_id,
        "object_id": event.object_id,
        "data": event.data,
    }
