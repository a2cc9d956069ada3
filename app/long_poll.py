"""Long polling: a request waits for a change that another process makes."""

import time
from collections.abc import Callable
from decimal import Decimal
from typing import TypeVar

from app.state import app_state
from server.pool import ResourceUse

FoundT = TypeVar("FoundT")
_POLLS_PER_SECOND = 2
PREFERENCE_APPLIED = "Preference-Applied"
NO_WAIT = Decimal(0)


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
