"""The stand-in over HTTP: `POST /info` and `/exchange` as the exchange has them; `/faults` and `/health` of our own."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sandbox.perpdex import answers
from sandbox.perpdex.answers import UnknownCoin, UnknownQuestion
from sandbox.perpdex.faults import Fault, Faults

WEIGHT_PER_MINUTE = 1200
_MINUTE = 60.0
_MAX_BODY_BYTES = 65_536
_REMEMBERED = 10_000
_NOT_UNDERSTOOD = b"Failed to deserialize the JSON body into the target type"


class ExchangeServer(ThreadingHTTPServer):
    """The exchange on a loopback port (0: a free one). `asked` holds the last questions."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *, port: int = 0, weight_per_minute: int = WEIGHT_PER_MINUTE) -> None:
        """Listen; `start()` begins to answer."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.faults = Faults()
        self.asked: deque[Any] = deque(maxlen=_REMEMBERED)
        self.refused = 0
        self.stopping = threading.Event()
        self._weight_per_minute = weight_per_minute
        self._taken: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    @property
    def url(self) -> str:
        """Return the base address."""
        return f"http://127.0.0.1:{self.server_port}"

    def start(self) -> None:
        """Answer in a thread of its own."""
        threading.Thread(
            target=self.serve_forever, name="perpdex", kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def stop(self) -> None:
        """Stop answering and listening."""
        self.stopping.set()
        self.shutdown()
        self.server_close()

    def note(self, question: Any) -> None:
        """Remember a question."""
        with self._lock:
            self.asked.append(question)

    def count(self, weight: int) -> bool:
        """Count a question's weight, and tell whether the address that asks is still within its minute."""
        now = time.monotonic()
        with self._lock:
            while self._taken and self._taken[0][0] < now - _MINUTE:
                self._taken.popleft()
            if sum(taken for _, taken in self._taken) + weight > self._weight_per_minute:
                self.refused += 1
                return False
            self._taken.append((now, weight))
            return True

    def handle_error(self, *_arguments: object) -> None:
        """Say nothing: a client that hangs up is its own affair."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: ExchangeServer

    def do_GET(self) -> None:
        """Answer GET /health."""
        if self.path == "/health":
            self._answer(HTTPStatus.OK, b'{"status": "ok"}')
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"", kind="text/plain")

    def do_DELETE(self) -> None:
        """Take all faults back: DELETE /faults."""
        self.server.faults.clear()
        self._answer(HTTPStatus.OK, b"{}")

    def do_POST(self) -> None:
        """Answer a question, refuse an action, or take a fault."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"", kind="text/plain")
            return
        text = self.rfile.read(int(length))
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if self.path == "/info":
            self._info(body)
        elif self.path == "/exchange":
            message = "User or API Wallet 0x0000000000000000000000000000000000000000 does not exist."
            self._answer(HTTPStatus.OK, json.dumps({"status": "err", "response": message}).encode())
        elif self.path == "/faults":
            self._take_fault(body)
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"", kind="text/plain")

    def _info(self, body: Any) -> None:
        self.server.note(body)
        fault = self.server.faults.take(body.get("type") if isinstance(body, dict) else None)
        if fault is not None:
            # Waits no longer than the server lives.
            self.server.stopping.wait(fault.seconds if not fault.hangs else None)
            if fault.hangs:
                self.close_connection = True
                return
            if fault.status is not None:
                self._answer(fault.status, fault.body.encode())
                return
        try:
            document = answers.answer(body)
        except UnknownQuestion:
            self._answer(HTTPStatus.UNPROCESSABLE_ENTITY, _NOT_UNDERSTOOD, kind="text/plain; charset=utf-8")
            return
        except UnknownCoin:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, b"null")
            return
        if not self.server.count(answers.weight(body, document)):
            self._answer(HTTPStatus.TOO_MANY_REQUESTS, b"null")
            return
        self._answer(HTTPStatus.OK, json.dumps(document).encode())

    def _take_fault(self, body: Any) -> None:
        try:
            self.server.faults.add(Fault.from_json(body))
        except ValueError as error:
            self._answer(HTTPStatus.BAD_REQUEST, json.dumps({"error": str(error)}).encode())
        else:
            self._answer(HTTPStatus.OK, b"{}")

    def _answer(self, status: int, content: bytes, *, kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's signature
        """Say nothing: the service that asks has the log."""
