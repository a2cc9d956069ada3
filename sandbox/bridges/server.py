"""HTTP server of the bridge stand-ins, in the formats of the originals, with faults on demand."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sandbox.bridges.attester import Attester
from sandbox.bridges.relay import InvalidRequest, Relay
from sandbox.evm.rpc import NodeDown, NodeError
from solana_node.loopback_server import LoopbackHandler, LoopbackServer

_MAX_BODY_BYTES = 100_000


@dataclass(slots=True)
class BridgeFaults:
    """Faults of all responses; `change` may alter any part of one, by request path."""

    status: int | None = None
    seconds: float = 0
    body: bytes | None = None
    change: Callable[[str, Any], Any] | None = None
    paths: tuple[str, ...] = ("/",)
    """Prefixes of the affected paths."""


class BridgeServer(LoopbackServer):
    """The stand-ins on a loopback port (0: a free one), for the chains behind these JSON-RPC addresses."""

    def __init__(self, urls: Mapping[str, str], *, port: int = 0, state: Path | None = None) -> None:
        """With `state`, the orders of Relay are kept in that file."""
        super().__init__(_Handler, port=port)
        self.attester = Attester(urls)
        self.relay = Relay(urls, state=state)
        self.faults = BridgeFaults()
        self.requests: list[str] = []


class _Handler(LoopbackHandler):
    timeout = 30
    server: BridgeServer

    def do_GET(self) -> None:
        """Answer a GET request."""
        address = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(address.query).items()}
        self._respond(address.path, lambda: self._get(address.path, query))

    def do_POST(self) -> None:
        """Answer a POST request."""
        body = self.read_limited_body(_MAX_BODY_BYTES)
        if body is None:
            self.reply(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"{}")
            return
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

    def _respond(self, path: str, result: Callable[[], Any]) -> None:
        self.server.requests.append(path)
        faults = self.server.faults
        is_hit = path.startswith(faults.paths)
        if is_hit:
            time.sleep(faults.seconds)
        if is_hit and (faults.status is not None or faults.body is not None):
            self.reply(faults.status or HTTPStatus.OK, faults.body or b"{}")
            return
        try:
            document = result()
        except (InvalidRequest, KeyError, ValueError, AssertionError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"message": str(error)})
        except (NodeDown, NodeError) as error:
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, {"message": f"a chain does not answer ({error})"})
        else:
            if document is None:
                self._answer(HTTPStatus.NOT_FOUND, {"code": 404, "message": "not found"})
                return
            altered = faults.change(path, document) if is_hit and faults.change else document
            self._answer(HTTPStatus.OK, altered)

    def _answer(self, status: HTTPStatus, document: Any) -> None:
        self.reply(status, json.dumps(document).encode())
