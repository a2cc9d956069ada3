"""LI.FI's API; only its route through Relay's depository is used.

Source: docs.li.fi, `GET /quote` and `GET /status`, and "Rate limits and API authentication".
"""

from typing import Any

from pydantic import AliasPath, Field

from app.adapters.bridges.relay import orders
from app.adapters.http_client import HttpResponse
from app.core.addresses import ZERO_EVM_ADDRESS
from app.core.foreign import ForeignModel, OptionalText, U256Digits
from app.ports.bridges import BridgeRequest
from app.ports.chain import Terms

_BRIDGE = "relaydepository"
_ORDER_STATUSES = {("DONE", "COMPLETED"): orders.OrderStatus.PAID, ("DONE", "REFUNDED"): orders.OrderStatus.REFUNDED}
"""Only these are final; PARTIAL is another token than requested."""


class _LifiQuote(ForeignModel):
    transaction_request: orders.RequestedTransaction
    minimum_units: U256Digits = Field(validation_alias=AliasPath("estimate", "toAmountMin"))
    seconds: orders.Seconds = Field(0, validation_alias=AliasPath("estimate", "executionDuration"))


class _LifiState(ForeignModel):
    status: str = ""
    substatus: OptionalText = None
    tx_hash: orders.OptionalOrderId = Field(None, validation_alias=AliasPath("receiving", "txHash"))


class LifiOrderService(orders.OrderService):
    name = "lifi"
    route = "LI.FI, Relay"
    key_header = "x-lifi-api-key"

    def _request_quote(self, request: BridgeRequest, chains: orders.BridgeChainIds) -> HttpResponse:
        query = {
            "fromChain": str(chains.source), "toChain": str(chains.destination),
            "fromToken": ZERO_EVM_ADDRESS, "toToken": ZERO_EVM_ADDRESS,
            "fromAmount": str(request.amount.units), "fromAddress": request.sender, "toAddress": request.recipient,
            "slippage": "0.005", "order": "FASTEST", "allowBridges": _BRIDGE,
        }  # fmt: skip
        return self._quotes.get(f"{self._url}/quote", query=query)

    def _parse_quote(self, body: Any, request: BridgeRequest, chains: orders.BridgeChainIds) -> orders.OrderQuote:
        quote = _LifiQuote.read(body)
        target = orders.lifi_deposit_call(
            quote.transaction_request, request, source_id=chains.source, destination_id=chains.destination
        )
        return orders.OrderQuote(target, quote.minimum_units, quote.seconds, terms={})

    def _request_state(self, terms: Terms, source_hash: str, chains: orders.BridgeChainIds) -> HttpResponse:
        query = {"txHash": source_hash, "fromChain": str(chains.source), "toChain": str(chains.destination)}
        return self._states.get(f"{self._url}/status", query=query)

    def _parse_state(self, response: HttpResponse) -> orders.OrderState:
        state = response.read(_LifiState.read)
        return orders.OrderState(
            _ORDER_STATUSES.get((state.status, state.substatus or ""), orders.OrderStatus.OPEN),
            note=f"lifi_{state.substatus or state.status}".lower()[:40],
            tx_hash=state.tx_hash,
        )
