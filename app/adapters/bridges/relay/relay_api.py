"""Relay's API: a quote with its deposit, and the state of an order.

Source: docs.relay.link, `POST /quote/v2` and `GET /intents/status/v3`; "Rate limits and API keys".
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from app.adapters.bridges.relay import calls
from app.adapters.bridges.relay.calls import RequestedTransaction
from app.adapters.bridges.relay.orders import BridgeChainIds, OrderQuote, OrderService, OrderState, OrderStatus
from app.adapters.http_client import HttpResponse
from app.core.addresses import ZERO_EVM_ADDRESS
from app.ports.bridges import BridgeRequest
from app.ports.chain import Terms
from app.ports.errors import Rejected

_ORDER_STATUSES = {
    "success": OrderStatus.PAID,
    "refund": OrderStatus.REFUNDED,
    "refunded": OrderStatus.REFUNDED,  # the documentation has had both
}


class RelayOrderService(OrderService):
    name = "relay"
    route = "Relay"
    key_header = "x-api-key"

    def _request_quote(self, request: BridgeRequest, chains: BridgeChainIds) -> HttpResponse:
        query = {
            "user": request.sender, "recipient": request.recipient,
            "originChainId": chains.source, "destinationChainId": chains.destination,
            "originCurrency": ZERO_EVM_ADDRESS, "destinationCurrency": ZERO_EVM_ADDRESS,
            "amount": str(request.amount.units), "tradeType": "EXACT_INPUT",
            # Without it an order that fails is not refunded.
            "refundTo": request.sender,
        }  # fmt: skip
        return self._quotes.post(f"{self._url}/quote/v2", json.dumps(query).encode())

    def _parse_quote(self, body: Any, request: BridgeRequest, chains: BridgeChainIds) -> OrderQuote:
        """Parse a quote of exactly one deposit."""
        if [step["kind"] for step in body["steps"]] != ["transaction"] or len(body["steps"][0]["items"]) != 1:
            raise Rejected("unsafe_instructions")
        (step,) = body["steps"]
        (item,) = step["items"]
        requested = RequestedTransaction.read(item["data"], value_units=int(item["data"]["value"]))
        out = body["details"]["currencyOut"]
        return OrderQuote(
            target=calls.deposit_call(requested, request, source_id=chains.source),
            minimum_units=int(out.get("minimumAmount") or out["amount"]),
            seconds=int(body["details"].get("timeEstimate") or 0),
            terms={"request_id": calls.parse_order_id(step["requestId"])},
        )

    def _request_state(self, terms: Terms, source_hash: str, chains: BridgeChainIds) -> HttpResponse:  # noqa: ARG002 - its id finds it
        query = {"requestId": str(terms["request_id"])}
        return self._states.get(f"{self._url}/intents/status/v3", query=query)

    def _parse_state(self, response: HttpResponse) -> OrderState:
        if response.status == HTTPStatus.NOT_FOUND:
            return OrderState(OrderStatus.OPEN, note="relay_unknown")
        body = response.json()
        status = str(body["status"])
        hashes = [calls.parse_order_id(tx_hash) for tx_hash in body.get("txHashes") or []]
        return OrderState(
            _ORDER_STATUSES.get(status, OrderStatus.OPEN),
            note=f"relay_{status}"[:40],
            tx_hash=hashes[-1] if hashes else None,
        )
