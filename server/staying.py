"""Threads that stay with a busy connection: they also serve requests that follow immediately (as in Puma).

Such a request neither wakes the event loop nor is handed over to a thread, which costs more than parsing it.
"""

from typing import Any

from server.request import MAX_BUFFERED_BYTES, expected_bytes


class Staying:
    """Which threads stay, and for how long.

    A thread that waits is not free for others: it does so only for a client that just sent a request soon after a
    response, and while at least half of all threads are free.
    """

    def __init__(self, *, threads: int, wait_ms: int) -> None:
        self._max_occupied = threads // 2
        self._wait_ms = wait_ms
        # Connections that have a thread or wait for one. Written by the event loop only.
        self.occupied = 0

    def is_busy(self, *, idle_ms: int) -> bool:
        """Return whether a connection that was idle for this long sends requests quickly enough."""
        return idle_ms < self._wait_ms

    def receive_next(self, connection: Any) -> bool:
        """Return whether the next request of a busy connection has arrived, so that this thread can serve it.

        What has arrived of an incomplete one is left in the parser's buffer, for the event loop.
        """
        if not connection.is_busy or self.occupied > self._max_occupied:
            return False
        unreader = connection.parser.unreader
        received = unreader.take_buffered() or connection.sock.receive_within(self._wait_ms, MAX_BUFFERED_BYTES)
        unreader.unread(received)
        connection.is_busy = bool(received)
        return 0 < expected_bytes(received) <= len(received)
