"""Channels: how an event is sent to each kind of target."""

from collections.abc import Sequence
from typing import Any

import structlog

from app.core import clock
from app.events import targets
from app.events.channels import mail, web_push, webhook
from app.events.channels.attempts import Attempt
from app.events.models import EventTarget
from app.events.targets import TargetKind

_log = structlog.get_logger(__name__)


def send(target: EventTarget, events: Sequence[Any]) -> Attempt:
    """Send events to a target once, in one message; to a webhook, a single one. Never raises."""
    at = clock.now()
    try:
        return _send(target, events)
    except Exception:
        # Recorded like any other failure: it must neither end the thread nor hold up other events.
        _log.exception("delivery_failed", target_id=target.id, event_id=events[0].id)
        return Attempt(at, 0, error="internal_error", is_unexpected=True)


def _send(target: EventTarget, events: Sequence[Any]) -> Attempt:
    match TargetKind(target.kind):
        case TargetKind.WEBHOOK:
            [event] = events
            return webhook.send(target.url, event, targets.secrets_of(target))
        case TargetKind.EMAIL:
            return mail.send(target.url, events)
        case TargetKind.WEB_PUSH:
            return web_push.send(target.url, targets.browser_keys_of(target), events)
