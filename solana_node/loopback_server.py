"""Base of the HTTP servers of all stand-ins; they end their connections when they stop, as a process does."""

import contextlib
import socket
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any

_RETRY_SECONDS = 0.01


class LoopbackHandler(BaseHTTPRequestHandler):
    """A handler of requests that keeps connections alive and writes no log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def read_body(self) -> bytes:
        """Return the request's body."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def read_limited_body(self, max_bytes: int) -> bytes | None:
        """Return the request's body; None, after which the connection ends, if it has no length or a higher one."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > max_bytes:
            self.close_connection = True
            return None
        return self.rfile.read(int(length))

    def reply(
        self,
        status: int,
        content: bytes,
        *,
        content_type: str | None = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Send a response."""
        self.send_response(status)
        if content_type is not None:
            self.send_header("Content-Type", content_type)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's signature
        """Write no log: polls would fill it."""


class LoopbackServer(ThreadingHTTPServer):
    """A server on a loopback port (0: a free one), with a thread per connection. At rest it uses no processor time."""

    daemon_threads = True
    request_queue_size = 512  # a client that finds the backlog full retries after seconds

    def __init__(self, handler: type[BaseHTTPRequestHandler], *, port: int = 0, host: str = "127.0.0.1") -> None:
        self._connections: set[socket.socket] = set()
        super().__init__((host, port), handler)

    @property
    def url(self) -> str:
        """Return the base address."""
        return f"http://{self.server_name}:{self.server_port}"

    def start(self) -> None:
        """Serve requests in a separate thread."""
        # No interval: by default the loop looks twice a second whether it should stop.
        threading.Thread(target=self.serve_forever, args=(None,), name=type(self).__name__, daemon=True).start()

    def stop(self) -> None:
        """Stop the server."""
        stopping = threading.Thread(target=self.shutdown)
        stopping.start()
        while stopping.is_alive():
            # A connection ends the wait of the loop.
            with (
                contextlib.suppress(OSError),
                socket.create_connection((self.server_name, self.server_port), timeout=1),
            ):
                stopping.join(_RETRY_SECONDS)
        self.server_close()

    def server_bind(self) -> None:
        """Bind without the DNS query of the base class."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record the connection, then serve it."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a served connection."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening and close connections: a kept-alive one must not reach a stopped node."""
        super().server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report the error of a connection, unless the client disconnected."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
