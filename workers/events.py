"""Events: number new ones and deliver them. Slow targets wait in threads of their own, never in a worker's job."""

import threading

import structlog

from app.events import deliveries, feed
from app.events.queues import QueueRank
from app.state import context_factory
from workers.context import job

_POOLS = tuple(
    (rank, threading.BoundedSemaphore(size))
    for rank, size in ((QueueRank.AGENT, 20), (QueueRank.OWNER, 6), (QueueRank.SERVICE, 6))
)
"""The threads of this process: those that serve all queues, and those that are reserved for a rank and above."""
_log = structlog.get_logger(__name__)


@job
def deliver() -> None:
    """Assign positions to new events, and start threads for the targets that are due, without waiting for them."""
    feed.number_all()
    start_threads()


def start_threads() -> list[threading.Thread]:
    """Start a thread for each target that is due, within the limits; each continues with the next target."""
    enter = context_factory()
    started: list[threading.Thread] = []
    for rank, free in _POOLS:
        due = deliveries.count_due(rank)
        before = len(started)
        while len(started) - before < due and free.acquire(blocking=False):
            # A process that ends does not wait for them: the leases expire.
            thread = threading.Thread(target=_deliver_all, args=(enter, rank, free), daemon=True, name="deliveries")
            thread.start()
            started.append(thread)
        if rank is QueueRank.AGENT and len(started) == due:
            # None was refused for want of a thread.
            break
    return started


def _deliver_all(enter: object, rank: QueueRank, free: threading.BoundedSemaphore) -> None:
    try:
        with enter():  # type: ignore[operator]
            while deliveries.deliver_next(rank):
                pass
    except Exception:
        # What was not recorded is due again when the lease expires.
        _log.exception("delivery_thread_failed")
    finally:
        free.release()
