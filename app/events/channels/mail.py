"""E-mail to owners: what happened, in plain text."""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Any

from app.core import clock
from app.events.channels.attempts import Attempt
from app.events.channels.http_post import milliseconds_since
from app.ports.errors import PortError
from app.state import app_state

_MAX_VALUE_CHARACTERS = 200


def send(url: str, event: Any) -> Attempt:
    """Send an event to a `mailto:` address once. Never raises for what the mail server does."""
    mailer = app_state().ports.mailer
    at, started_ns = clock.now(), time.monotonic_ns()
    if mailer is None:
        return Attempt(at, 0, error="no_mail_server")
    try:
        mailer.send(
            url.removeprefix("mailto:"),
            subject=f"Purser: {event.type}",
            text=_text(event),
            message_id=event.id,
        )
    except PortError as error:
        return Attempt(at, milliseconds_since(started_ns), error=error.reason)
    return Attempt(at, milliseconds_since(started_ns), status_code=HTTPStatus.OK)


def _text(event: Any) -> str:
    lines = [f"{name}: {_shown(value)}" for name, value in event.data.items() if value is not None]
    return "\n".join(
        [
            f"{event.type} at {clock.isoformat(event.created_at)}",
            "",
            *lines,
            "",
            f"Event {event.id}, agent {event.agent_id}",
            f"{app_state().settings.public_url}/owner",
            "",
        ]
    )


def _shown(value: object) -> str:
    """Return a value on one line: what an agent wrote must not look like other lines."""
    return " ".join(str(value).split())[:_MAX_VALUE_CHARACTERS]
