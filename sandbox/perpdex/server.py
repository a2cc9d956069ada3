"""HTTP server of the stand-in: `POST /info` and `/exchange` like the exchange, and `/faults` and `/health`."""

import json
import threading
import time
from collections import deque
from http import HTTPStatus
from typing import Any

from sandbox.perpdex import responses
from sandbox.perpdex.faults import Fault, Faults
from sandbox.perpdex.responses import UnknownCoin, UnknownQuery
from solana_node.loopback_server import LoopbackHandler, LoopbackServer

WEIGHT_PER_MINUTE = 1200
_MINUTE = 60.0
_MAX_BODY_BYTES = 65_536
_MAX_RECORDED = 10_000
_DESERIALIZATION_ERROR = b"Failed to deserialize the JSON body into the target type"


class ExchangeServer(LoopbackServer):
    """The exchange on a loopback port (0: a free one). `queries` holds the last requests."""

    def __init__(self, *, port: int = 0, weight_per_minute: int = WEIGHT_PER_MINUTE) -> None:
        super().__init__(_Handler, port=port)
        self.faults = Faults()
        self.queries: deque[Any] = deque(maxlen=_MAX_RECORDED)
        self.refused = 0
        self.stopping = threading.Event()
        self._weight_per_minute = weight_per_minute
        self._weights: deque[tuple[float, int]] = deque()
        self._lock = threading.Lock()

    def stop(self) -> None:
        """Stop the server."""
        self.stopping.set()
        super().stop()

    def record(self, query: Any) -> None:
        """Record a request."""
        with self._lock:
            self.queries.append(query)

    def count(self, weight: int) -> bool:
        """Count the weight of a request; return whether its address is within the limit of the minute."""
        now = time.monotonic()
        with self._lock:
            while self._weights and self._weights[0][0] < now - _MINUTE:
                self._weights.popleft()
            if sum(taken for _, taken in self._weights) + weight > self._weight_per_minute:
                self.refused += 1
                return False
            self._weights.append((now, weight))
            return True


class _Handler(LoopbackHandler):
    timeout = 30
    server: ExchangeServer

    def do_GET(self) -> None:
        """Answer GET /health."""
        if self.path == "/health":
            self.reply(HTTPStatus.OK, b'{"status": "ok"}')
        else:
            self.reply(HTTPStatus.NOT_FOUND, b"", content_type="text/plain")

    def do_DELETE(self) -> None:
        """Remove all faults: DELETE /faults."""
        self.server.faults.clear()
        self.reply(HTTPStatus.OK, b"{}")

    def do_POST(self) -> None:
        """Answer a request, refuse an action, or add a fault."""
        text = self.read_limited_body(_MAX_BODY_BYTES)
        if text is None:
            self.reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"", content_type="text/plain")
            return
        try:
            body = json.loads(text)
        except ValueError:
            body = None
        if self.path == "/info":
            self._info(body)
        elif self.path == "/exchange":
            message = "User or API Wallet 0x0000000000000000000000000000000000000000 does not exist."
            self.reply(HTTPStatus.OK, json.dumps({"status": "err", "response": message}).encode())
        elif self.path == "/faults":
            self._take_fault(body)
        else:
            self.reply(HTTPStatus.NOT_FOUND, b"", content_type="text/plain")

    def _info(self, body: Any) -> None:
        self.server.record(body)
        fault = self.server.faults.take(body.get("type") if isinstance(body, dict) else None)
        if fault is not None:
            # Ends with the server.
            self.server.stopping.wait(fault.seconds if not fault.hangs else None)
            if fault.hangs:
                self.close_connection = True
                return
            if fault.status is not None:
                self.reply(fault.status, fault.body.encode())
                return
        try:
            document = responses.answer(body)
        except UnknownQuery:
            self.reply(
                HTTPStatus.UNPROCESSABLE_ENTITY, _DESERIALIZATION_ERROR, content_type="text/plain; charset=utf-8"
            )
            return
        except UnknownCoin:
            self.reply(HTTPStatus.INTERNAL_SERVER_ERROR, b"null")
            return
        if not self.server.count(responses.weight(body, document)):
            self.reply(HTTPStatus.TOO_MANY_REQUESTS, b"null")
            return
        self.reply(HTTPStatus.OK, json.dumps(document).encode())

    def _take_fault(self, body: Any) -> None:
        try:
            self.server.faults.add(Fault.from_json(body))
        except ValueError as error:
            self.reply(HTTPStatus.BAD_REQUEST, json.dumps({"error": str(error)}).encode())
        else:
            self.reply(HTTPStatus.OK, b"{}")
