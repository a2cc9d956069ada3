"""Sells `/report` for a cent by MPP with PyPI's `pympp`, as its documentation shows.

Arguments: the facilitator's URL, the payee, and what binds payments by x402: "required", the package's default, demands
that they are bound to the route, "resource" does not; "mpp" hides the terms of x402, which the package states too.
"""

import asyncio
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version

from mpp.methods.evm import BASE_USDC
from mpp.methods.evm import server as evm
from mpp.server import Mpp, Request, Response

facilitator, payee, binding = sys.argv[1:]
hidden = {"payment-required"} if binding == "mpp" else set()
options = {} if hidden else {"route_binding": binding}
method = evm.charge(currency=BASE_USDC, recipient=payee, facilitator=facilitator, **options)
mpp = Mpp(methods=method, realm="127.0.0.1", secret_key="secret" * 8)


class Shop(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        request = Request("GET", f"{url}{self.path}", list(self.headers.items()))
        result = asyncio.run(mpp.charge(amount="0.01")(request))
        paid = result.status == 200
        answer = result.with_receipt(Response.json({"report": "sunny"})) if paid else result.challenge
        self.send_response(answer.status)
        for name, value in answer.headers.multi_items():
            if name.lower() not in hidden:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.body or b"")))
        self.end_headers()
        self.wfile.write(answer.body or b"")

    def log_message(self, *_ignored: object) -> None:
        pass


listening = ThreadingHTTPServer(("127.0.0.1", 0), Shop)
url = f"http://127.0.0.1:{listening.server_port}"
sys.stdout.write(json.dumps({"url": url, "version": version("pympp")}) + "\n")
sys.stdout.flush()
listening.serve_forever()
