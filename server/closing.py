"""Lingering close (RFC 9112 §9.6): connections closed for writing, while their clients may still send or read.

gunicorn waits for each of them in its loop, where one silent client would delay all others.
"""

import selectors
import socket
import time
from contextlib import suppress
from dataclasses import dataclass

LINGER_SECONDS = 2
_MAX_CONNECTIONS = 512
_MAX_DISCARDED_BYTES = 256 * 1024
_CHUNK_BYTES = 16_384
_TICK_MS = 100


@dataclass(slots=True)
class _LingeringConnection:
    """When to close a connection, and how much of its input was discarded."""

    deadline: int
    discarded_bytes: int = 0


class LingeringCloser:
    """Closes connections once their clients have, or after a while. Its own selector outlasts the worker's loop."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._connections: dict[socket.socket, _LingeringConnection] = {}

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when any of the connections does."""
        return self._selector.fileno()

    def add(self, connection: socket.socket) -> None:
        """Shut a connection down for writing; close it when the client has, or soon.

        Closed immediately with unread input, it would be reset and the response lost.
        """
        try:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(0)
            self._selector.register(connection, selectors.EVENT_READ)
        except (OSError, ValueError, KeyError):
            connection.close()
            return
        self._connections[connection] = _LingeringConnection(time.monotonic_ns() + LINGER_SECONDS * 10**9)
        if len(self._connections) > _MAX_CONNECTIONS:
            self.close_oldest()

    def discard_input(self, wait_ms: int = 0) -> None:
        """Read and discard input."""
        for key, _ in self._selector.select(wait_ms / 1000):
            if isinstance(key.fileobj, socket.socket):
                self._discard_from(key.fileobj)

    def close_expired(self) -> None:
        """Close the connections past their deadline."""
        now = time.monotonic_ns()
        for connection, lingering in list(self._connections.items()):
            if lingering.deadline > now:
                break
            self._close(connection)

    def close_oldest(self) -> bool:
        """Close the oldest connection; return whether there was one."""
        oldest = next(iter(self._connections), None)
        if oldest is None:
            return False
        self._close(oldest)
        return True

    def drain(self) -> None:
        """Wait until all are closed."""
        while self._connections:
            self.discard_input(_TICK_MS)
            self.close_expired()
        self._selector.close()

    def _discard_from(self, connection: socket.socket) -> None:
        lingering = self._connections[connection]
        with suppress(OSError):
            if piece := connection.recv(_CHUNK_BYTES):
                lingering.discarded_bytes += len(piece)
                if lingering.discarded_bytes < _MAX_DISCARDED_BYTES:
                    return
        self._close(connection)

    def _close(self, connection: socket.socket) -> None:
        del self._connections[connection]
        self._selector.unregister(connection)
        connection.close()
