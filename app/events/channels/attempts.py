"""An attempt to deliver an event, and what is sent of it."""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from app.core import clock
from app.ports.errors import OutcomeUnknown, PortError
from app.ports.upstream import Headers, UpstreamRequest, UpstreamResponse
from app.state import app_state

_SLOW_MILLISECONDS = 3000
TIMEOUT_SECONDS = 15
_MAX_ANSWER_BYTES = 1024
_MAX_RETRY_AFTER = timedelta(hours=24)
_DELAYS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


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


def post(url: str, headers: Headers, body: bytes) -> Attempt:
    """Send a body once. Never raises for what the target does."""
    parts = urlsplit(url)
    request = UpstreamRequest(
        "POST",
        f"{parts.scheme}://{parts.netloc}",
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        headers,
        body,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    at, started_ns = clock.now(), time.monotonic_ns()
    try:
        response = app_state().ports.public_upstream.send(request)
        try:
            answer = _read(response)
        finally:
            response.close()
    except PortError as error:
        return Attempt(at, milliseconds_since(started_ns), error=error.reason)
    return Attempt(
        at, milliseconds_since(started_ns), status_code=response.status, answer=answer,
        retry_after=_retry_after(response.headers) if response.status in _DELAYS else None,
        is_gone=response.status == HTTPStatus.GONE
    )  # fmt: skip


def milliseconds_since(started_ns: int) -> int:
    """Return the time since a value of the monotonic clock."""
    return (time.monotonic_ns() - started_ns) // 1_000_000


def _read(response: UpstreamResponse) -> str:
    """Return the beginning of an answer; the connection can be used again if that is all of it."""
    answer = b""
    try:
        while len(answer) <= _MAX_ANSWER_BYTES and (piece := response.read()):
            answer += piece
    except OutcomeUnknown:
        # The status is what counts.
        pass
    return answer[:_MAX_ANSWER_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd")


def _retry_after(headers: Headers) -> timedelta | None:
    """Return what `Retry-After` asks for, at most a day."""
    seconds = clock.seconds_until(next((value for name, value in headers if name.lower() == "retry-after"), ""))
    return None if seconds is None else min(timedelta(seconds=seconds), _MAX_RETRY_AFTER)
