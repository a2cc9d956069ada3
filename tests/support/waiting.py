"""Waiting for a condition instead of a fixed time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

PATIENCE_SECONDS = 90.0
"""Default timeout, far longer than anything takes on a busy machine."""


def wait_until(
    condition: Callable[[], T],
    timeout: float = PATIENCE_SECONDS,
    *,
    interval: float = 0.02,
    what: str = "the condition",
) -> T:
    """Return the condition's first true value, polling every `interval` seconds for at most `timeout` seconds.

    Raises: AssertionError that names `what` when the time is over. Exceptions of the condition propagate.
    """
    deadline = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what} did not become true within {timeout} s; last value: {value!r}")
        time.sleep(interval)


def conclusive(attempt: Callable[[], None], within: float, timeout: float = PATIENCE_SECONDS) -> None:
    """Run an attempt that is only valid if it takes less than `within` seconds, a time limit of what is tested.

    A failure that took longer proves nothing, because the limit may have ended the attempt: it is repeated, for at most
    `timeout` seconds. Each attempt makes its own connections. Every other failure passes through.
    """
    deadline = time.monotonic() + timeout
    while True:
        began = time.monotonic()
        try:
            attempt()
        except (AssertionError, OSError, ValueError):
            now = time.monotonic()
            if now - began < within or now >= deadline:
                raise
        else:
            return


@contextmanager
def beside(act: Callable[[], None], over: threading.Event) -> Iterator[None]:
    """Run a function in a thread until the context ends, which sets `over`."""
    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
