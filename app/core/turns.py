"""Turns within one process at what one row of the database is locked for.

Whoever would wait for that row waits here instead, without a connection: the callers of one busy account then neither
take the connections of all others, nor keep waking each other up. An optimisation, never a proof: the database decides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.core.unit_of_work import assert_no_unit

_PATIENCE_SECONDS = 60
# Names share a turn where their hashes do: that is rare, harmless, and needs no book-keeping.
_LOCKS = tuple(threading.Lock() for _ in range(1024))


@contextmanager
def turn(name: str) -> Iterator[None]:
    """Wait for one's turn at a name; go on without it when the others take too long. Taken before the unit of work.

    Raises: UnitError inside a unit: who waits must hold nothing.
    """
    assert_no_unit()
    lock = _LOCKS[hash(name) % len(_LOCKS)]
    is_ours = lock.acquire(timeout=_PATIENCE_SECONDS)
    try:
        yield
    finally:
        if is_ours:
            lock.release()
