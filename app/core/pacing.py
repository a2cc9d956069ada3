"""Work in many short units, with rests between them, so that whoever waits for the same rows has a turn.

SQLite has one writer at a time and lets those who wait look now and then; without rests they would find it taken again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

_SECOND = 10**9
_LONGEST_REST = _SECOND // 10


def units(most: int, *, seconds: int = 8) -> Iterator[None]:
    """Yield once for each unit, at most so many and for about so many seconds; rest after each as long as it took."""
    ends = time.monotonic_ns() + seconds * _SECOND
    for _ in range(most):
        began = time.monotonic_ns()
        yield
        now = time.monotonic_ns()
        if now >= ends:
            return
        time.sleep(min(now - began, _LONGEST_REST) / _SECOND)


def repeat(step: Callable[[int], int], *, per_unit: int, most: int) -> int:
    """Do a step of at most `per_unit` in one unit after another, until one finds fewer; return how many in all."""
    done = 0
    for _ in units(most):
        count = step(per_unit)
        done += count
        if count < per_unit:
            break
    return done
