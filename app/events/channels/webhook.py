"""Webhooks, signed by Standard Webhooks 1.0."""

import base64
import hashlib
import hmac
import json
from collections.abc import Sequence
from typing import Any

from app.core import clock
from app.events.channels.attempts import Attempt, payload, post
from app.version import VERSION


def signature(secret: str, message_id: str, timestamp: int, body: bytes) -> str:
    """Return the symmetric signature of Standard Webhooks: base64 of the HMAC-SHA256 of id, time and body."""
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = f"{message_id}.{timestamp}.".encode() + body
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def send(url: str, event: Any, secrets: Sequence[str]) -> Attempt:
    """Send an event to a webhook once. Never raises for what the target does."""
    body = json.dumps(payload(event), separators=(",", ":")).encode()
    timestamp = int(clock.now().timestamp())
    return post(
        url,
        [
            ("Content-Type", "application/json"),
            ("User-Agent", f"purser/{VERSION}"),
            ("webhook-id", event.id),
            ("webhook-timestamp", str(timestamp)),
            ("webhook-signature", " ".join(signature(each, event.id, timestamp, body) for each in secrets)),
        ],
        body,
    )
