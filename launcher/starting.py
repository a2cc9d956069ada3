"""The answer to requests while the service starts: 503 STARTING, until everything that it promises works.

Then the web process inherits the socket, as from systemd, so that no connection is refused in between.
"""

from __future__ import annotations

import contextlib
import json
import socket

_BODY = json.dumps({
    "error": "The sandbox is starting; try again in a second.", "code": "STARTING", "request_id": "",
}).encode()  # fmt: skip
_RESPONSE = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)
_CLIENT_SECONDS = 0.2
_MAX_REQUEST_BYTES = 65_536
_BACKLOG = 1024


class StartingListener:
    """Listens on the port of the service. The event loop calls `answer` when a client connects."""

    def __init__(self, address: str, port: int) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((address, port))
        self._socket.listen(_BACKLOG)
        self._socket.settimeout(0)

    def fileno(self) -> int:
        return self._socket.fileno()

    def answer(self) -> None:
        """Answer all clients that are connected."""
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:  # there is none, or it has gone
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(_CLIENT_SECONDS)
                client.recv(_MAX_REQUEST_BYTES)
                client.sendall(_RESPONSE)
                client.shutdown(socket.SHUT_WR)
