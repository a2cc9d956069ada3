"""Latencies in fixed bars, so that a day's median costs the same after ten calls and after ten million.

Each bar is a fifth wider than the one before; a median is given as the middle of its bar and so is at most 10 % off
(and rounded to a millisecond).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import pairwise

_FIRST_MICROSECONDS = 1_000
_LAST_MICROSECONDS = 4_000_000_000


def _bounds() -> tuple[int, ...]:
    bounds = [_FIRST_MICROSECONDS]
    while bounds[-1] < _LAST_MICROSECONDS:
        bounds.append(bounds[-1] * 6 // 5)
    return tuple(bounds)


BOUNDS = _bounds()
_MIDDLES = (BOUNDS[0] // 2, *((low + high) // 2 for low, high in pairwise(BOUNDS)), BOUNDS[-1])


def bar_of(microseconds: int) -> int:
    """Return the number of the bar in which a latency counts."""
    return bisect_right(BOUNDS, microseconds)


def median_milliseconds(calls_by_bar: Mapping[int, int]) -> int | None:
    """Return the (lower) median of what the bars hold, None of nothing. It is 1 at least."""
    left = (sum(calls_by_bar.values()) + 1) // 2
    if left == 0:
        return None
    for bar in sorted(calls_by_bar):
        left -= calls_by_bar[bar]
        if left <= 0:
            return max(1, (_MIDDLES[bar] + 500) // 1000)
    return None
