"""In-process locks shared by hash, which queue requests for one database row or one account.

A request that would wait for the row waits here instead, without a database connection: the requests of one busy
account then neither take the connections of others nor wake each other up. An optimisation: the row lock decides.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from app.db.unit_of_work import assert_no_unit

_TIMEOUT_SECONDS = 60
# Names with the same hash share a lock, which is rare and harmless.
_LOCKS = tuple(threading.Lock() for _ in range(1024))


@contextmanager
def striped_lock(name: str, *, timeout_seconds: int = _TIMEOUT_SECONDS) -> Iterator[bool]:
    """Acquire the lock of a name; yield whether that succeeded in time. Taken before the unit of work.

    Raises: UnitError inside a unit, which would hold row locks while waiting.
    """
    assert_no_unit()
    lock = _LOCKS[hash(name) % len(_LOCKS)]
    acquired = lock.acquire(timeout=timeout_seconds)
    try:
        yield acquired
    finally:
        if acquired:
            lock.release()
