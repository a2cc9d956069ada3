"""One POST to an address that others supplied.

The client is the one of the proxy: each connection is to an address of the public internet that was just resolved.
"""

from __future__ import annotations

import time
from datetime import timedelta
from http import HTTPStatus
from urllib.parse import urlsplit

from app.core import clock
from app.events.channels.attempts import Attempt
from app.ports.errors import OutcomeUnknown, PortError
from app.ports.upstream import Headers, UpstreamRequest, UpstreamResponse
from app.state import app_state

TIMEOUT_SECONDS = 15
_MAX_ANSWER_BYTES = 1024
_MAX_RETRY_AFTER = timedelta(hours=24)
_DELAYS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


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
