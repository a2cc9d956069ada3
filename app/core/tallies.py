"""Counts of what happens in this process, taken now and then to where those of all processes are added up.

Counting costs a lock and a look-up, so it may stand anywhere. Labels are routes, chains and services, never ids: an
outsider must not be able to make series. What is beyond `_MAX_SERIES` all the same is left out.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections.abc import Mapping

_MAX_SERIES = 10_000
BOUNDS_MICROSECONDS = (
    5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000,
    1_000_000, 2_500_000, 5_000_000, 10_000_000, 30_000_000, 60_000_000,
)  # fmt: skip
"""Upper bounds of a histogram's buckets; a last one takes all above."""
SUM = "sum"

_lock = threading.Lock()
_counts: dict[str, int] = {}


def count(name: str, amount: int = 1, /, **labels: str) -> None:
    """Add to a counter."""
    _add({_series(name, labels): amount})


def observe(name: str, microseconds: int, /, **labels: str) -> None:
    """Put a duration into a histogram."""
    series = _series(name, labels)
    bucket = bisect_left(BOUNDS_MICROSECONDS, microseconds)
    _add({f"{series}\t{bucket}": 1, f"{series}\t{SUM}": microseconds})


def take() -> dict[str, int]:
    """Return all counts since the last time, and start again from nothing."""
    global _counts
    with _lock:
        taken, _counts = _counts, {}
    return taken


def give_back(counts: Mapping[str, int]) -> None:
    """Add counts that were taken and could not be handed on."""
    _add(counts)


def _series(name: str, labels: Mapping[str, str]) -> str:
    return "\t".join([name, *(f"{label}={value}" for label, value in sorted(labels.items()))])


def _add(counts: Mapping[str, int]) -> None:
    with _lock:
        for series, amount in counts.items():
            if series in _counts or len(_counts) < _MAX_SERIES:
                _counts[series] = _counts.get(series, 0) + amount


def _begin_anew() -> None:
    # A fork has its parent's counts, which the parent hands on itself, and perhaps a lock that nobody gives back.
    global _lock, _counts
    _lock, _counts = threading.Lock(), {}


os.register_at_fork(after_in_child=_begin_anew)
