"""Verification of the events that the service delivers (Standard Webhooks 1.0)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from typing import cast

from purser.errors import WebhookVerificationError
from purser.types import AccountEvent

_TOLERANCE_SECONDS = 300


def verify_webhook(body: bytes | str, headers: Mapping[str, str], secret: str) -> AccountEvent:
    """Return the event of a delivery. `body` is the body as it arrived. Raises: WebhookVerificationError."""
    content = body.encode() if isinstance(body, str) else body
    given = {name.lower(): value for name, value in headers.items()}
    message_id, sent_at = given.get("webhook-id", ""), given.get("webhook-timestamp", "")
    if not (sent_at.isdecimal() and abs(time.time() - int(sent_at)) <= _TOLERANCE_SECONDS):
        raise WebhookVerificationError("The timestamp is missing, or too far from now.", code="WEBHOOK_TIMESTAMP")
    key = base64.b64decode(secret.removeprefix("whsec_"))
    signed = hmac.new(key, f"{message_id}.{sent_at}.".encode() + content, hashlib.sha256).digest()
    expected = f"v1,{base64.b64encode(signed).decode()}"
    if not any(hmac.compare_digest(expected, each) for each in given.get("webhook-signature", "").split()):
        raise WebhookVerificationError("No signature is valid for this secret.", code="WEBHOOK_SIGNATURE")
    return cast("AccountEvent", json.loads(content))
