"""The HTTP face of the stand-ins, in the wire shapes of the originals. It can be told to be away, slow, or wrong."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sandbox.bridges.attester import Attester
from sandbox.bridges.relay import BadQuestion, Relay
from sandbox.evm.rpc import NodeDown, NodeError

_MAX_BODY_BYTES = 100_000


@dataclass(slots=True)
class Faults:
    """How every answer is spoiled from now on; `change` may lie about anything in it, by the path that was asked."""

    status: int | None = None
    seconds: float = 0
    body: bytes | None = None
    change: Callable[[str, Any], Any] | None = None
    paths: tuple[str, ...] = ("/",)
    """Which paths these hit, by their beginnings."""


class BridgeServer(ThreadingHTTPServer):
    """The stand-ins on a loopback port (0: a free one), for the chains behind these JSON-RPC addresses."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, urls: Mapping[str, str], *, port: int = 0, state: Path | None = None) -> None:
        """Listen; `start()` begins to answer. With `state`, what Relay has promised outlives this process."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.attester = Attester(urls)
        self.relay = Relay(urls, state=state)
        self.faults = Faults()
        self.asked: list[str] = []

    @property
    def url(self) -> str:
        """Return the base address."""
        return f"http://127.0.0.1:{self.server_port}"

    def start(self) -> None:
        """Answer in a thread of its own."""
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, name="bridges", daemon=True
        ).start()

    def stop(self) -> None:
        """Stop answering and listening."""
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30
    server: BridgeServer

    def do_GET(self) -> None:
        """Answer a question."""
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        self._respond(address.path, lambda: self._get(address.path, query))

    def do_POST(self) -> None:
        """Answer a question with a body."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _MAX_BODY_BYTES:
            self.close_connection = True
            self._send(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"{}")
            return
        body = self.rfile.read(int(length))
        path = urlsplit(self.path).path
        self._respond(path, lambda: self._post(path, body))

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        relay, attester = self.server.relay, self.server.attester
        parts = path.strip("/").split("/")
        if path.startswith("/v2/burn/USDC/fees/") and len(parts) == 6:  # noqa: PLR2004 - its places
            return attester.fees(int(parts[4]), int(parts[5]))
        if path.startswith("/v2/messages/") and len(parts) == 3:  # noqa: PLR2004 - its places
            return attester.messages(int(parts[2]), query["transactionHash"])
        if path == "/intents/status/v3":
            return relay.status(query["requestId"])
        if path == "/v1/quote":
            return relay.lifi_quote(query)
        if path == "/v1/status":
            return relay.lifi_status(query["txHash"])
        return None

    def _post(self, path: str, body: bytes) -> Any:
        if path == "/quote/v2":
            return self.server.relay.quote(json.loads(body))
        if path.startswith("/v2/reattest/"):
            return {"message": "requested"} if self.server.attester.renew(path.rsplit("/", 1)[1]) else None
        return None

    def _respond(self, path: str, answer: Callable[[], Any]) -> None:
        self.server.asked.append(path)
        faults = self.server.faults
        is_hit = path.startswith(faults.paths)
        if is_hit:
            time.sleep(faults.seconds)
        if is_hit and (faults.status is not None or faults.body is not None):
            self._send(faults.status or HTTPStatus.OK, faults.body or b"{}")
            return
        try:
            document = answer()
        except (BadQuestion, KeyError, ValueError, AssertionError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"message": str(error)})
        except (NodeDown, NodeError) as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"message": f"a chain does not answer ({error})"})
        else:
            if document is None:
                self._answer(HTTPStatus.NOT_FOUND, {"code": 404, "message": "not found"})
                return
            spoiled = faults.change(path, document) if is_hit and faults.change else document
            self._answer(HTTPStatus.OK, spoiled)

    def _answer(self, status: HTTPStatus, document: Any) -> None:
        self._send(status, json.dumps(document).encode())

    def _send(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's signature
        """Say nothing: the service that asks has the log."""
