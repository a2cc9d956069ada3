"""A facilitator over HTTP, by the `x402` package: sellers in other programs verify and settle with it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from eth_account import Account
from flask import Flask, jsonify, request
from werkzeug.serving import make_server
from x402 import x402FacilitatorSync
from x402.mechanisms.evm import FacilitatorWeb3Signer
from x402.mechanisms.evm.exact import ExactEvmFacilitatorScheme
from x402.mechanisms.evm.exact.v1 import ExactEvmSchemeV1Facilitator
from x402.schemas import PaymentPayload, PaymentRequirements
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequirementsV1

from sandbox.evm import EvmNode
from tests.support.chains import fund


@contextmanager
def http_facilitator(node: EvmNode) -> Iterator[str]:
    """Serve `/verify`, `/settle` and `/supported` for a node's chain in both versions; yield the URL."""
    settler = Account.create()
    fund(node, settler.address, eth=1)
    signer = FacilitatorWeb3Signer(settler.key.hex(), node.url)
    facilitator = x402FacilitatorSync()
    facilitator.register([f"eip155:{node.chain_id}"], ExactEvmFacilitatorScheme(signer))
    facilitator.register_v1([str(node.deployment.legacy_network)], ExactEvmSchemeV1Facilitator(signer))
    # The signer counts nonces by itself.
    lock = threading.Lock()
    app = Flask("facilitator")

    def given() -> tuple[Any, Any]:
        body: Any = request.get_json()
        payload, terms = body["paymentPayload"], body["paymentRequirements"]
        if payload["x402Version"] == 1:
            return PaymentPayloadV1.model_validate(payload), PaymentRequirementsV1.model_validate(terms)
        return PaymentPayload.model_validate(payload), PaymentRequirements.model_validate(terms)

    @app.post("/verify")
    def verify() -> Any:
        with lock:
            return jsonify(facilitator.verify(*given()).model_dump(by_alias=True, exclude_none=True))

    @app.post("/settle")
    def settle() -> Any:
        with lock:
            return jsonify(facilitator.settle(*given()).model_dump(by_alias=True, exclude_none=True))

    @app.get("/supported")
    def supported() -> Any:
        return jsonify(facilitator.get_supported().model_dump(by_alias=True, exclude_none=True))

    web = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=web.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{web.server_port}"
    finally:
        web.shutdown()
        thread.join()
        web.server_close()
