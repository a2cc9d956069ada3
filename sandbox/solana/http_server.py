"""HTTP: POST a request to any path, GET /health. Faults asked of the transport happen here."""

import contextlib
import json
import socket
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, Final

from sandbox.solana import rpc
from sandbox.solana.chain import Chain
from sandbox.solana.errors import PARSE_ERROR
from sandbox.solana.faults import CLOSE_CONNECTION

OK: Final = 200
NOT_FOUND: Final = 404
TOO_MANY_REQUESTS: Final = 429


class RpcHttpServer(ThreadingHTTPServer):
    """Serves one chain, a thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, chain: Chain) -> None:
        self.chain = chain
        self._connections: set[socket.socket] = set()
        super().__init__((host, port), _Handler)

    def server_bind(self) -> None:
        """Bind without asking a name server who we are, as the base class would."""
        TCPServer.server_bind(self)
        self.server_name = str(self.server_address[0])
        self.server_port = self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Remember the connection, then serve it."""
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection that has been served."""
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Stop listening and hang up: a kept-alive connection must not reach a node that was stopped."""
        super().server_close()
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what broke a connection, unless the client merely left."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: RpcHttpServer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """Keep quiet: a busy node would print a line for every poll."""

    def do_GET(self) -> None:
        """Answer the health check."""
        if self.path == "/health":
            self._reply(OK, b"ok", content_type="text/plain")
        else:
            self._reply(NOT_FOUND, b"", content_type="text/plain")

    def do_POST(self) -> None:
        """Answer a JSON-RPC request, unless a fault says otherwise."""
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            body = json.loads(text)
        except ValueError:
            error = {"code": PARSE_ERROR, "message": "Parse error"}
            self._reply_json({"jsonrpc": "2.0", "error": error, "id": None})
            return
        methods = rpc.methods_in(body)
        # The same plan before and after: a request that replaces the faults is not itself broken by them.
        faults = self.server.chain.faults
        time.sleep(faults.delay_seconds(methods))
        status = faults.take_status_before(methods)
        if status is not None:
            self._fail(status)
            return
        answer = rpc.answer(self.server.chain, body)
        status = faults.take_status_after(methods)
        if status is not None:
            self._fail(status)
            return
        self._reply_json(answer)

    def _fail(self, status: int) -> None:
        if status == CLOSE_CONNECTION:
            self.close_connection = True
            return
        self._reply(status, b'{"error":"injected"}')

    def _reply_json(self, body: object) -> None:
        self._reply(OK, json.dumps(body, separators=(",", ":")).encode())

    def _reply(self, status: int, body: bytes, *, content_type: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status == TOO_MANY_REQUESTS:
            self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)
