"""HTTP server: POST a request to any path, GET /health. Applies the faults of the transport."""

import json
import time
from typing import Final

from solana_node import rpc
from solana_node.chain import Chain
from solana_node.errors import PARSE_ERROR
from solana_node.faults import CLOSE_CONNECTION
from solana_node.loopback_server import LoopbackHandler, LoopbackServer

OK: Final = 200
NOT_FOUND: Final = 404
TOO_MANY_REQUESTS: Final = 429


class RpcHttpServer(LoopbackServer):
    """Server of one chain, with a thread per connection."""

    def __init__(self, host: str, port: int, chain: Chain) -> None:
        self.chain = chain
        super().__init__(_Handler, port=port, host=host)


class _Handler(LoopbackHandler):
    server: RpcHttpServer

    def do_GET(self) -> None:
        """Answer the health check."""
        if self.path == "/health":
            self.reply(OK, b"ok", content_type="text/plain")
        else:
            self.reply(NOT_FOUND, b"", content_type="text/plain")

    def do_POST(self) -> None:
        """Answer a JSON-RPC request, subject to the faults."""
        text = self.read_body()
        try:
            body = json.loads(text)
        except ValueError:
            error = {"code": PARSE_ERROR, "message": "Parse error"}
            self._reply_json({"jsonrpc": "2.0", "error": error, "id": None})
            return
        methods = rpc.methods_in(body)
        # Read once: a request that replaces the faults is not affected by the new ones.
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
        headers = {"Retry-After": "1"} if status == TOO_MANY_REQUESTS else {}
        self.reply(status, b'{"error":"injected"}', headers=headers)

    def _reply_json(self, body: object) -> None:
        self.reply(OK, json.dumps(body, separators=(",", ":")).encode())
