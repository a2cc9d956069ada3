"""Connections that we have closed on our side, and whose callers may still be sending or reading.

gunicorn waits for each of them in its loop, where one caller who says nothing would hold up all others.
"""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

SECONDS = 2
_MOST = 512
_MAX_DISCARDED_BYTES = 256 * 1024
_CHUNK_BYTES = 16_384
_TICK_MS = 100


@dataclass(slots=True)
class _End:
    """What is left of a connection."""

    deadline: int
    discarded_bytes: int = 0


class Lingering:
    """Those connections, oldest first. Has a selector of its own, so as to outlast the loop that watches it."""

    def __init__(self) -> None:
        """Linger with nobody yet; made in the process that does."""
        self._selector = selectors.DefaultSelector()
        self._ends: dict[socket.socket, _End] = {}

    def fileno(self) -> int:
        """Return what becomes readable when one of them does."""
        return self._selector.fileno()

    def add(self, connection: socket.socket) -> None:
        """Say that nothing more is coming, and close when the other side has, or soon.

        Closed at once, with anything unread, it would be reset, and the answer lost on its way.
        """
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0)
            self._selector.register(connection, selectors.EVENT_READ)
        except (OSError, ValueError, KeyError):
            connection.close()
            return
        self._ends[connection] = _End(time.monotonic_ns() + SECONDS * 10**9)
        if len(self._ends) > _MOST:
            self.end_oldest()

    def discard(self, wait_ms: int = 0) -> None:
        """Read what they send for nothing."""
        for key, _ in self._selector.select(wait_ms / 1000):
            if isinstance(key.fileobj, socket.socket):
                self._discard(key.fileobj)

    def end_overdue(self) -> None:
        """Close those whose time is over."""
        now = time.monotonic_ns()
        for connection, end in list(self._ends.items()):
            if end.deadline > now:
                break
            self._end(connection)

    def end_oldest(self) -> bool:
        """Close one; return whether there was any."""
        oldest = next(iter(self._ends), None)
        if oldest is None:
            return False
        self._end(oldest)
        return True

    def see_off(self) -> None:
        """Wait for all of them."""
        while self._ends:
            self.discard(_TICK_MS)
            self.end_overdue()
        self._selector.close()

    def _discard(self, connection: socket.socket) -> None:
        end = self._ends[connection]
        with suppress(OSError):
            if piece := connection.recv(_CHUNK_BYTES):
                end.discarded_bytes += len(piece)
                if end.discarded_bytes < _MAX_DISCARDED_BYTES:
                    return
        self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        del self._ends[connection]
        self._selector.unregister(connection)
        connection.close()
