"""The answer to requests while the service starts: 503 STARTING, until everything that it promises works.

Then the web process inherits the socket, as from systemd, so that no connection is refused in between.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket

_BODY = json.dumps({
    "error": "The sandbox is starting; try again in a second.", "code": "STARTING", "request_id": "",
}).encode()  # fmt: skip
_PAGE = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="2">
<title>Starting</title>
<style>body { max-width: 34rem; margin: 20vh auto 0; padding: 0 1rem; font: 1rem/1.5 system-ui, sans-serif }</style>
<h1>Purser is starting</h1>
<p>This page reloads until it has started: that takes about ten seconds, and a minute or two the first time.</p>
<p><a href="">Reload now</a></p>
</html>
"""
_ACCEPT = re.compile(rb"\r\naccept:([^\r]*)", re.IGNORECASE)
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
                client.sendall(response_to(client.recv(_MAX_REQUEST_BYTES)))
                client.shutdown(socket.SHUT_WR)


def response_to(request: bytes) -> bytes:
    """Return a page for a browser, and JSON for all other clients."""
    accepted = _ACCEPT.search(request)
    is_browser = accepted is not None and b"text/html" in accepted[1] and b"application/json" not in accepted[1]
    kind, body = (b"text/html; charset=utf-8", _PAGE) if is_browser else (b"application/json", _BODY)
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: %s\r\nRetry-After: 1\r\nVary: Accept\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (kind, len(body), body)
    )
