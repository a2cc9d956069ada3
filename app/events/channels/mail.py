"""E-mail to owners: what happened, in plain text."""

import time
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

from app.core import clock
from app.events.channels.attempts import Attempt, counts_of, milliseconds_since
from app.ports.errors import PortError
from app.state import app_state

_MAX_VALUE_CHARACTERS = 200
_MAX_IN_FULL = 20
"""Further events in a message are listed by type and time."""


def send(url: str, events: Sequence[Any]) -> Attempt:
    """Send events to a `mailto:` address once, in one message. Never raises for what the mail server does."""
    mailer = app_state().ports.mailer
    at, started_ns = clock.now(), time.monotonic_ns()
    if mailer is None:
        return Attempt(at, 0, error="no_mail_server")
    what = events[0].type if len(events) == 1 else f"{len(events)} notices"
    try:
        mailer.send(url.removeprefix("mailto:"), subject=f"Purser: {what}", text=_text(events), message_id=events[0].id)
    except PortError as error:
        return Attempt(at, milliseconds_since(started_ns), error=error.reason)
    return Attempt(at, milliseconds_since(started_ns), status_code=HTTPStatus.OK)


def _text(events: Sequence[Any]) -> str:
    lines = []
    if len(events) > 1:
        counts = ", ".join(f"{number} {each}" for each, number in counts_of(events).items())
        lines = [f"{len(events)} notices have waited for this message: {counts}.", ""]
    for number, event in enumerate(events):
        lines.append(f"{event.type} at {clock.isoformat(event.created_at)}")
        if number < _MAX_IN_FULL:
            values = [f"{name}: {_shown(value)}" for name, value in event.data.items() if value is not None]
            lines += ["", *values, "", f"Event {event.id}, agent {event.agent_id}", ""]
    return "\n".join([*lines, f"{app_state().settings.public_url}/owner", ""])


def _shown(value: object) -> str:
    """Return a value on one line: what an agent wrote must not look like other lines."""
    return " ".join(str(value).split())[:_MAX_VALUE_CHARACTERS]
