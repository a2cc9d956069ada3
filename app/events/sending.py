"""Sending one event to a webhook, signed by Standard Webhooks 1.0.

The client is the one that the proxy uses for addresses of others: the resolved address is checked for each connection.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from app.core import clock
from app.ports.errors import OutcomeUnknown, PortError
from app.ports.upstream import Headers, UpstreamRequest, UpstreamResponse
from app.state import app_state
from app.version import VERSION

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

    @property
    def is_delivered(self) -> bool:
        """Return whether the target accepted the event."""
        return (
            self.status_code is not None and HTTPStatus(200) <= self.status_code < HTTPStatus.MULTIPLE_CHOICES
        )

    @property
    def is_gone(self) -> bool:
        """Return whether the target wants no more events."""
        return self.status_code == HTTPStatus.GONE

    @property
    def is_unanswered(self) -> bool:
        """Return whether the target did not answer, so that other events would not be, either."""
        return self.status_code is None

    def as_json(self) -> dict[str, Any]:
        """Return the record of the attempt."""
        return {
            "at": clock.isoformat(self.at),
            "status_code": self.status_code,
            "error": self.error,
            "duration_ms": self.milliseconds,
            "answer": self.answer,
        }


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


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the symmetric signature of Standard Webhooks: base64 of the HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def post(url: str, event: Any, secrets: Sequence[str]) -> Attempt:
    """Send an event to a webhook once. Never raises for what the target does."""
    body = json.dumps(payload(event), separators=(",", ":")).encode()
    now = clock.now()
    timestamp = int(now.timestamp())
    parts = urlsplit(url)
    request = UpstreamRequest(
        "POST",
        f"{parts.scheme}://{parts.netloc}",
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        [
            ("Content-Type", "application/json"),
            ("User-Agent", f"purser/{VERSION}"),
            ("webhook-id", event.id),
            ("webhook-timestamp", str(timestamp)),
            ("webhook-signature", " ".join(signature(each, event.id, timestamp, body) for each in secrets)),
        ],
        body,
        timeout_seconds=TIMEOUT_SECONDS,
    )
    started_ns = time.monotonic_ns()
    try:
        response = app_state().ports.public_upstream.send(request)
        try:
            answer = _read(response)
        finally:
            response.close()
    except PortError as error:
        return Attempt(now, _milliseconds(started_ns), error=error.reason)
    return Attempt(
        now, _milliseconds(started_ns), status_code=response.status, answer=answer,
        retry_after=_retry_after(response.headers) if response.status in _DELAYS else None,
    )  # fmt: skip


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
    text = next((value for name, value in headers if name.lower() == "retry-after"), "").strip()
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), _MAX_RETRY_AFTER)
    try:
        until = email.utils.parsedate_to_datetime(text)
    except ValueError:
        return None
    until = until if until.tzinfo is not None else until.replace(tzinfo=UTC)
    return max(timedelta(), min(until - clock.now(), _MAX_RETRY_AFTER))


def _milliseconds(started_ns: int) -> int:
    return (time.monotonic_ns() - started_ns) // 1_000_000
