"""Placement of web processes on processors.

The threads of a process take turns with the interpreter. On one processor they find its caches warm, and to wake one
is no interrupt of another processor.
"""

import os
from collections import Counter
from collections.abc import Iterable
from typing import Any


def choose_processor(allowed: Iterable[int], processes: int, taken: Iterable[int | None]) -> int | None:
    """Return the processor that the fewest web processes are on; None if they would not use all of them equally.

    Fewer processes than processors stay where the kernel moves them: other services may use the same processors.
    """
    candidates = sorted(allowed)
    if not candidates or processes % len(candidates):
        return None
    counts = Counter(taken)
    return min(candidates, key=lambda processor: counts[processor])


def allowed_processors() -> set[int]:
    """Return the processors that this process may use; none where that cannot be chosen (macOS)."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def place(worker: Any) -> None:
    """Stay on the processor that was chosen for this process, with all threads that it starts from now on."""
    if worker.processor is not None:
        os.sched_setaffinity(0, {worker.processor})
