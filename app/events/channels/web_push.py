"""Web push to the browsers of owners: RFC 8030, encrypted by RFC 8291, with the service's key by RFC 8292."""

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from py_vapid import Vapid02

from app.core import clock
from app.events.channels.attempts import Attempt, counts_of, payload, post
from app.state import app_state

_TTL_SECONDS = 24 * 3600
_TOKEN_SECONDS = 12 * 3600
_MAX_PLAIN_BYTES = 3000
"""A push service must accept 4096 bytes of encrypted body."""


def send(endpoint: str, keys: Mapping[str, str], events: Sequence[Any]) -> Attempt:
    """Send events to a browser's push service once, in one message. Never raises for what it does."""
    private = app_state().settings.web_push_key.get_secret_value()
    if not private:
        return Attempt(clock.now(), 0, error="no_web_push_key")
    from pywebpush import WebPusher  # noqa: PLC0415 - it imports aiohttp, which takes megabytes

    encrypted = WebPusher({"endpoint": endpoint, "keys": dict(keys)}).encode(_message(events))["body"]
    attempt = post(
        endpoint,
        [
            ("Content-Type", "application/octet-stream"),
            ("Content-Encoding", "aes128gcm"),
            ("TTL", str(_TTL_SECONDS)),
            ("Urgency", "high"),
            *_authorization(private, endpoint),
        ],
        encrypted,
    )
    # A subscription that no longer exists.
    return replace(attempt, is_gone=True) if attempt.status_code == HTTPStatus.NOT_FOUND else attempt


def public_key() -> str | None:
    """Return the key by which browsers subscribe, None if the service sends no push messages."""
    private = app_state().settings.web_push_key.get_secret_value()
    if not private:
        return None
    point = Vapid02.from_string(private).public_key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)
    return base64.urlsafe_b64encode(point).decode().rstrip("=")


def _message(events: Sequence[Any]) -> bytes:
    message = payload(events[0])
    if len(events) > 1:
        # The page lists them.
        data = {"message": ", ".join(f"{number} {each}" for each, number in counts_of(events).items())}
        message |= {"type": "notices", "data": {**data, "count": len(events)}}
    full = json.dumps(message, separators=(",", ":")).encode()
    if len(full) <= _MAX_PLAIN_BYTES:
        return full
    return json.dumps({**message, "data": {}}, separators=(",", ":")).encode()


def _authorization(private: str, endpoint: str) -> list[tuple[str, str]]:
    parts, settings = urlsplit(endpoint), app_state().settings
    claims = {
        "aud": f"{parts.scheme}://{parts.netloc}",
        "exp": int(clock.now().timestamp()) + _TOKEN_SECONDS,
        "sub": f"mailto:{settings.mail_from}"
        if settings.mail_from
        else f"https://{urlsplit(settings.public_url).hostname}",
    }
    headers: dict[str, str] = Vapid02.from_string(private).sign(claims)
    return list(headers.items())
