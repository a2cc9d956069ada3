"""Work in batches: many short units with pauses, so that other units get the same rows in between.

SQLite has one writer at a time, and waiting writers poll for the lock: without pauses they would always find it held.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from sqlalchemy import Select, delete
from sqlalchemy.orm import InstrumentedAttribute

from app.db.unit_of_work import unit_of_work

_NANOS_PER_SECOND = 10**9
_MAX_PAUSE_NS = _NANOS_PER_SECOND // 10


def batches(max_batches: int, *, max_seconds: int = 8) -> Iterator[None]:
    """Yield once per batch, for about `max_seconds`; pause after each as long as it took."""
    deadline_ns = time.monotonic_ns() + max_seconds * _NANOS_PER_SECOND
    for _ in range(max_batches):
        started_ns = time.monotonic_ns()
        yield
        now = time.monotonic_ns()
        if now >= deadline_ns:
            return
        time.sleep(min(now - started_ns, _MAX_PAUSE_NS) / _NANOS_PER_SECOND)


def run_in_batches(step: Callable[[int], int], *, batch_size: int, max_batches: int) -> int:
    """Repeat a step of at most `batch_size` rows until it processes fewer; return the total."""
    total = 0
    for _ in batches(max_batches):
        count = step(batch_size)
        total += count
        if count < batch_size:
            break
    return total


def delete_in_batches(key: InstrumentedAttribute[Any], old: Select[Any], *, batch_size: int, max_batches: int) -> int:
    """Delete the rows with a key that a query returns, each batch in its own unit; return how many."""

    def step(limit: int) -> int:
        with unit_of_work() as session:
            deleted = session.execute(
                delete(key.class_)
                .where(key.in_(old.limit(limit).scalar_subquery()))
                .execution_options(synchronize_session=False)
            )
        return int(deleted.rowcount)  # type: ignore[attr-defined]

    return run_in_batches(step, batch_size=batch_size, max_batches=max_batches)
