"""Relay's API: a quote with its deposit, and the state of an order.

Source: docs.relay.link, `POST /quote/v2` and `GET /intents/status/v3`; "Rate limits and API keys".
"""

import json
from http import HTTPStatus
from typing import Any

from pydantic import AliasPath, Field

from app.adapters.bridges.relay import orders
from app.adapters.http_client import HttpResponse
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.foreign import ForeignModel, Items, OptionalItems, U256Digits
from app.ports.bridges import BridgeRequest
from app.ports.chain import Terms
from app.ports.errors import Rejected

_ORDER_STATUSES = {
    "success": orders.OrderStatus.PAID,
    "refund": orders.OrderStatus.REFUNDED,
    "refunded": orders.OrderStatus.REFUNDED,  # the documentation has had both
}


_OUTPUT = "details", "currencyOut"


class _RelayStep(ForeignModel):
    kind: str
    items: Items[Any]


class _RelayQuote(ForeignModel):
    steps: Items[_RelayStep]
    minimum_units: U256Digits | None = Field(None, validation_alias=AliasPath(*_OUTPUT, "minimumAmount"))
    units: U256Digits = Field(0, validation_alias=AliasPath(*_OUTPUT, "amount"))
    seconds: orders.Seconds = Field(0, validation_alias=AliasPath("details", "timeEstimate"))


class _RelayItem(ForeignModel):
    data: orders.RequestedTransaction


class _RelayDeposit(ForeignModel):
    request_id: orders.OrderId
    items: Items[_RelayItem]


class _RelayState(ForeignModel):
    status: str
    tx_hashes: OptionalItems[orders.OrderId] = ()


class RelayOrderService(orders.OrderService):
    name = "relay"
    route = "Relay"
    key_header = "x-api-key"

    def _request_quote(self, request: BridgeRequest, chains: orders.BridgeChainIds) -> HttpResponse:
        query = {
            "user": request.sender, "recipient": request.recipient,
            "originChainId": chains.source, "destinationChainId": chains.destination,
            "originCurrency": ZERO_EVM_ADDRESS, "destinationCurrency": ZERO_EVM_ADDRESS,
            "amount": str(request.amount.units), "tradeType": "EXACT_INPUT",
            # Without it an order that fails is not refunded.
            "refundTo": request.sender,
        }  # fmt: skip
        return self._quotes.post(f"{self._url}/quote/v2", json.dumps(query).encode())

    def _parse_quote(self, body: Any, request: BridgeRequest, chains: orders.BridgeChainIds) -> orders.OrderQuote:
        quote = _RelayQuote.read(body)
        if [step.kind for step in quote.steps] != ["transaction"] or len(quote.steps[0].items) != 1:
            raise Rejected("unsafe_instructions")
        deposit = _RelayDeposit.read(body["steps"][0])
        return orders.OrderQuote(
            target=orders.deposit_call(deposit.items[0].data, request, source_id=chains.source),
            minimum_units=quote.minimum_units or quote.units,
            seconds=quote.seconds,
            terms={"request_id": deposit.request_id},
        )

    def _request_state(self, terms: Terms, source_hash: str, chains: orders.BridgeChainIds) -> HttpResponse:
        query = {"requestId": str(terms["request_id"])}
        return self._states.get(f"{self._url}/intents/status/v3", query=query)

    def _parse_state(self, response: HttpResponse) -> orders.OrderState:
        if response.status == HTTPStatus.NOT_FOUND:
            return orders.OrderState(orders.OrderStatus.OPEN, note="relay_unknown")
        state = response.read(_RelayState.read)
        return orders.OrderState(
            _ORDER_STATUSES.get(state.status, orders.OrderStatus.OPEN),
            note=f"relay_{state.status}"[:40],
            tx_hash=state.tx_hashes[-1] if state.tx_hashes else None,
        )
