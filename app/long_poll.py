"""Long polling: a request waits for a change that another process makes, as long as its client prefers (RFC 7240)."""

import re
import time
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from flask import request

from app.state import app_state
from server.pool import ResourceUse

FoundT = TypeVar("FoundT")
_POLLS_PER_SECOND = 2
PREFERENCE_APPLIED = "Preference-Applied"
NO_WAIT = Decimal(0)
_MAX_WAIT_SECONDS = 25


def wait(
    found: FoundT,
    read: Callable[[FoundT], FoundT],
    is_done: Callable[[FoundT], object],
    *,
    seconds: Decimal,
    account_id: str,
) -> FoundT:
    """Read again until it is done, as long as requested and while a waiting slot is free; return what was read last."""
    if seconds <= 0 or is_done(found):
        return found
    deadline = time.monotonic() + int(seconds)
    with app_state().threads.try_acquire(ResourceUse.OUTCOME, account_id) as acquired:
        while acquired and not is_done(found) and time.monotonic() < deadline:
            time.sleep(1 / _POLLS_PER_SECOND)
            found = read(found)
    return found


def wait_seconds() -> Decimal | None:
    """Return how long the client prefers to wait for an outcome: 0 to 25 seconds, None without a valid preference."""
    preference = ",".join(request.headers.getlist("Prefer"))
    for part in preference.split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "respond-async":
            return Decimal(0)
        if name.strip().lower() == "wait" and re.fullmatch(r"[0-9]{1,6}", value.strip(), re.ASCII):
            return Decimal(min(int(value), _MAX_WAIT_SECONDS))
    return None
