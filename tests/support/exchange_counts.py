"""Relays on loopback that count what a service exchanges with its database, with Redis and with a node.

They count on the wire, so the counts do not depend on how the service's code reaches these servers.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

Observer = Callable[[bytes], None]


@contextmanager
def relay(
    url: str, *, sent: Callable[[], Observer] | None = None, received: Callable[[], Observer] | None = None
) -> Iterator[int]:
    """Relay connections to the server of a URL on loopback until the block ends; yield the port.

    Each connection gets an observer of its own of what is sent, or received, before that is passed on.
    """
    parts = urlsplit(url)
    to = (str(parts.hostname), int(parts.port or 0))

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError), socket.create_connection(to) as server:
                server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_copy, args=[server, self.request, received], daemon=True)
                back.start()
                _copy(self.request, server, sent)
                back.join()

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield int(server.server_address[1])
        finally:
            server.shutdown()
            thread.join()


def _copy(source: socket.socket, target: socket.socket, make_observer: Callable[[], Observer] | None) -> None:
    observe = make_observer() if make_observer else None
    with suppress(OSError):
        while data := source.recv(65_536):
            if observe:
                observe(data)
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def count_exchanges(
    counts: Counter[str], name: str, *, start: bytes = b"", unless: bytes | None = None
) -> Callable[[], Observer]:
    """Return the factory of an observer that counts pieces with this start, `unless` they contain something.

    A small request is one piece.
    """

    def observe(data: bytes) -> None:
        counts[name] += data.startswith(start) and (unless is None or unless not in data)

    return lambda: observe


class PostgresAnswers:
    """Counts of one connection: completed statements, commits, and round trips (protocol, section 54.7)."""

    _CONTROL = frozenset((b"BEGIN", b"COMMIT", b"ROLLBACK"))

    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts
        self._rest = b""

    def __call__(self, data: bytes) -> None:
        """Count the messages of the server. The connection must not use TLS."""
        data = self._rest + data
        while len(data) > 4 and len(data) > (size := int.from_bytes(data[1:5])):
            kind, body, data = data[:1], data[5 : size + 1], data[size + 1 :]
            if kind == b"Z":  # ReadyForQuery
                self._counts["round trips"] += 1
            elif kind == b"C":  # CommandComplete, with the statement's name
                name = body.rstrip(b"\0").split(b" ")[0]
                self._counts["commits"] += name == b"COMMIT"
                self._counts["statements"] += name not in self._CONTROL
        self._rest = data


def count_sqlite(counts: Counter[str], statement: str) -> None:
    """Count a statement that SQLite traces."""
    name = statement.lstrip().split(maxsplit=1)[0].upper().rstrip(";")
    counts["SQLite commits"] += name == "COMMIT"
    counts["SQLite statements"] += name not in ("BEGIN", "COMMIT", "ROLLBACK", "PRAGMA") and not name.startswith("--")
