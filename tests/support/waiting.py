"""Awaiting a condition instead of sleeping for a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(
    condition: Callable[[], T],
    timeout: float = 10.0,
    *,
    interval: float = 0.02,
    what: str = "the condition",
) -> T:
    """Return the condition's first true value, asking every `interval` seconds for at most `timeout` seconds.

    Raises: AssertionError that names `what` when the time is over. Exceptions of the condition pass through.
    """
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not come true within {timeout} s; last value: {value!r}")
        time.sleep(interval)
