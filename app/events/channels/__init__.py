"""Channels: how an event is sent to each kind of target."""

from __future__ import annotations

from typing import Any

from app.events import targets
from app.events.channels import webhook
from app.events.channels.attempts import Attempt
from app.events.models import EventTarget


def send(target: EventTarget, event: Any) -> Attempt:
    """Send an event to a target once. Never raises for what the target does."""
    return webhook.send(target.url, event, targets.secrets_of(target))
