"""Events: number new ones and deliver them. Slow targets wait in threads of their own, never in a worker's job."""

from __future__ import annotations

import threading

import structlog

from app.events import deliveries, sequence
from app.state import context_factory
from workers.context import job

MAX_THREADS = 32
_log = structlog.get_logger(__name__)
_free = threading.BoundedSemaphore(MAX_THREADS)


@job
def deliver() -> None:
    """Assign positions to new events, and start threads for the targets that are due, without waiting for them."""
    sequence.number_all()
    start_threads()


def start_threads() -> list[threading.Thread]:
    """Start a thread for each target that is due, within the limit; each continues with the next target."""
    enter = context_factory()
    started = []
    for _ in range(deliveries.count_due()):
        if not _free.acquire(blocking=False):
            break
        # A process that ends does not wait for them: the leases expire.
        thread = threading.Thread(target=_deliver_all, args=(enter,), daemon=True, name="deliveries")
        thread.start()
        started.append(thread)
    return started


def _deliver_all(enter: object) -> None:
    try:
        with enter():  # type: ignore[operator]
            while deliveries.deliver_next():
                pass
    except Exception:
        # What was not recorded is due again when the lease expires.
        _log.exception("delivery_thread_failed")
    finally:
        _free.release()
