"""Sending of events to each kind of target: webhooks, e-mail and web push, and the attempt that results.

Webhooks are signed by Standard Webhooks 1.0. Web push goes to the browsers of owners: RFC 8030, encrypted by RFC 8291,
with the service's key by RFC 8292.
"""

import base64
import hashlib
import hmac
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import structlog
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc.util import urlsafe_b64encode
from py_vapid import Vapid02

from app.core import clock
from app.core.identifiers import require
from app.events import targets
from app.events.models import EventTarget
from app.events.schemas import AccountEvent
from app.events.targets import TargetKind
from app.ports.errors import PortError, Unreachable
from app.ports.upstream import Headers, UpstreamRequest, read_beginning
from app.state import app_state
from app.version import VERSION

_log = structlog.get_logger(__name__)
_SLOW_MILLISECONDS = 3000
_EVENT = AccountEvent()
_MAX_ANSWER_BYTES = 1024
_DELAYS = (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE)


@dataclass(frozen=True, slots=True)
class Attempt:
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
        return self.status_code is not None and HTTPStatus.OK <= self.status_code < HTTPStatus.MULTIPLE_CHOICES

    @property
    def holds_up(self) -> bool:
        """Return whether there was no answer, or a late refusal, so that the target is left alone for a while."""
        is_unanswered = self.status_code is None and not self.is_unexpected
        return is_unanswered or (not self.is_delivered and self.milliseconds > _SLOW_MILLISECONDS)

    def as_json(self) -> dict[str, Any]:
        return {
            "at": clock.isoformat(self.at), "status_code": self.status_code, "error": self.error,
            "duration_ms": self.milliseconds, "answer": self.answer,
        }  # fmt: skip


def _counts(events: Sequence[Any]) -> str:
    """Return how many events there are of each type, in the order of their first one."""
    return ", ".join(f"{number} {each}" for each, number in Counter(event.type for event in events).items())


def _post(url: str, headers: Headers, body: bytes) -> dict[str, Any]:
    """Send a body once; return what an `Attempt` stores of the answer. Raises: PortError."""
    parts = urlsplit(url)
    request = UpstreamRequest(
        "POST", f"{parts.scheme}://{parts.netloc}", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        headers, body, timeout_seconds=15,
    )  # fmt: skip
    response = app_state().ports.public_upstream.send(request)
    # The status is what counts. The connection can be used again if that is all of the answer.
    answer, _ = read_beginning(response, _MAX_ANSWER_BYTES)
    return {
        "status_code": response.status,
        "answer": answer[:_MAX_ANSWER_BYTES].decode("utf-8", "replace").replace("\0", "\ufffd"),
        "retry_after": _retry_after(response.headers) if response.status in _DELAYS else None,
        "is_gone": response.status == HTTPStatus.GONE,
    }


def _retry_after(headers: Headers) -> timedelta | None:
    """Return what `Retry-After` asks for, at most a day."""
    seconds = clock.seconds_until(next((value for name, value in headers if name.lower() == "retry-after"), ""))
    return None if seconds is None else min(timedelta(seconds=seconds), timedelta(hours=24))


def send(target: EventTarget, events: Sequence[Any]) -> Attempt:
    """Send events to a target once, in one message; to a webhook, a single one. Never raises."""
    at, started_ns = clock.now(), time.monotonic_ns()
    try:
        match TargetKind(target.kind):
            case TargetKind.WEBHOOK:
                [event] = events
                act = partial(_send_to_webhook, target.url, event, targets.secrets_of(target))
            case TargetKind.EMAIL:
                act = partial(_send_mail, target.url, events)
            case TargetKind.WEB_PUSH:
                act = partial(_push, target.url, targets.browser_keys_of(target), events)
        # A secret that cannot be opened, above, is no failure of the target.
        try:
            outcome = act()
        except PortError as error:
            outcome = {"error": error.reason}
    except Exception:
        # Recorded like any other failure: it must neither end the thread nor hold up other events.
        _log.exception("delivery_failed", target_id=target.id, event_id=events[0].id)
        outcome = {"error": "internal_error", "is_unexpected": True}
    return Attempt(at, (time.monotonic_ns() - started_ns) // 1_000_000, **outcome)


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the symmetric signature of Standard Webhooks: base64 of the HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _send_to_webhook(url: str, event: Any, secrets: Sequence[str]) -> dict[str, Any]:
    body = json.dumps(_EVENT.dump(event), separators=(",", ":")).encode()
    timestamp = int(clock.now().timestamp())
    headers = {
        "Content-Type": "application/json", "User-Agent": f"purser/{VERSION}", "webhook-id": event.id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": " ".join(signature(each, event.id, timestamp, body) for each in secrets),
    }  # fmt: skip
    return _post(url, [*headers.items()], body)


_MAX_IN_FULL = 20
"""Further events in a message are listed by type and time."""


def _send_mail(url: str, events: Sequence[Any]) -> dict[str, Any]:
    mailer = require(app_state().ports.mailer, Unreachable("no_mail_server"))
    what = events[0].type if len(events) == 1 else f"{len(events)} notices"
    recipient, text = url.removeprefix("mailto:"), _mail_text(events)
    mailer.send(recipient, subject=f"Purser: {what}", text=text, message_id=events[0].id)
    return {"status_code": HTTPStatus.OK}


def _mail_text(events: Sequence[Any]) -> str:
    lines = []
    if len(events) > 1:
        lines = [f"{len(events)} notices have waited for this message: {_counts(events)}.", ""]
    for number, event in enumerate(events):
        lines.append(f"{event.type} at {clock.isoformat(event.created_at)}")
        if number < _MAX_IN_FULL:
            values = [f"{name}: {_shown(value)}" for name, value in event.data.items() if value is not None]
            lines += ["", *values, "", f"Event {event.id}, agent {event.agent_id}", ""]
    return "\n".join([*lines, f"{app_state().settings.public_url}/owner", ""])


def _shown(value: object) -> str:
    """Return a value on one line: what an agent wrote must not look like other lines."""
    return " ".join(str(value).split())[:200]


_MAX_PLAIN_BYTES = 3000
"""A push service must accept 4096 bytes of encrypted body."""


def _push(endpoint: str, keys: Mapping[str, str], events: Sequence[Any]) -> dict[str, Any]:
    private = app_state().settings.web_push_key.get_secret_value()
    if not private:
        raise Unreachable("no_web_push_key")
    from pywebpush import WebPusher  # noqa: PLC0415 - it imports aiohttp, which takes megabytes

    encrypted = WebPusher({"endpoint": endpoint, "keys": dict(keys)}).encode(_push_message(events))["body"]
    headers = {
        "Content-Type": "application/octet-stream", "Content-Encoding": "aes128gcm", "TTL": str(24 * 3600),
        "Urgency": "high", **_authorization(private, endpoint),
    }  # fmt: skip
    answered = _post(endpoint, [*headers.items()], encrypted)
    # A subscription that no longer exists.
    return answered | {"is_gone": answered["status_code"] in (HTTPStatus.NOT_FOUND, HTTPStatus.GONE)}


def web_push_key() -> str | None:
    """Return the key by which browsers subscribe, None if the service sends no push messages."""
    private = app_state().settings.web_push_key.get_secret_value()
    if not private:
        return None
    point = Vapid02.from_string(private).public_key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return urlsafe_b64encode(point).decode()


def _push_message(events: Sequence[Any]) -> bytes:
    message = _EVENT.dump(events[0])
    if len(events) > 1:
        # The page lists them.
        message |= {"type": "notices", "data": {"message": _counts(events), "count": len(events)}}
    full = json.dumps(message, separators=(",", ":")).encode()
    if len(full) <= _MAX_PLAIN_BYTES:
        return full
    return json.dumps({**message, "data": {}}, separators=(",", ":")).encode()


def _authorization(private: str, endpoint: str) -> dict[str, str]:
    parts, settings = urlsplit(endpoint), app_state().settings
    mail, site = f"mailto:{settings.mail_from}", f"https://{urlsplit(settings.public_url).hostname}"
    claims = {
        "aud": f"{parts.scheme}://{parts.netloc}", "exp": int(clock.now().timestamp()) + 12 * 3600,
        "sub": mail if settings.mail_from else site,
    }  # fmt: skip
    headers: dict[str, str] = Vapid02.from_string(private).sign(claims)
    return headers
