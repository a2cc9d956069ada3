"""The services that pay out ether on another chain, Relay and LI.FI, and the two calls that may be signed for them.

A call is decoded from the service's request, compared, and encoded again. Sources: Relay's `RelayDepository.sol` and
docs.relay.link (`POST /quote/v2`, `GET /intents/status/v3`, rate limits); LI.FI's `ILiFi.sol` and
`RelayDepositoryFacet.sol`, docs.li.fi (`GET /quote`, `GET /status`, rate limits), where only the route through Relay's
depository is used.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, ClassVar, TypeVar

from eth_utils.address import to_checksum_address
from pydantic import AliasPath, BeforeValidator, Field, StringConstraints

from app.adapters.bridges.deployments import DEPOSITORY, LIFI_DIAMOND
from app.adapters.evm.contracts.calls import Function
from app.adapters.evm.send.transactions import CallTarget
from app.adapters.http_client import HttpClient
from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess, read_quote
from app.core.chains import ZERO_EVM_ADDRESS
from app.core.foreign import ForeignModel, HexBytes, Items, OptionalItems, OptionalText, U64Digits, U256Digits, parsed
from app.ports.bridges import BridgePhase, BridgeRequest
from app.ports.chain import Terms
from app.ports.errors import Rejected, Unreachable

T = TypeVar("T")
_DEPOSIT = Function("relay_depository", "depositNative")
_VIA_LIFI = Function("lifi_diamond", "startBridgeTokensViaRelayDepository")


def _from_hex(value: object) -> object:
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else value


OrderId = Annotated[str, StringConstraints(pattern=r"^0x[0-9a-fA-F]{64}$", to_lower=True)]
OptionalOrderId = Annotated[OrderId | None, BeforeValidator(lambda value: value or None)]
Seconds = Annotated[int, Field(ge=0, lt=2**31), parsed(lambda seconds: int(seconds or 0))]


class RequestedTransaction(ForeignModel):
    """A transaction that a service requests to be signed; the value is in decimal digits, or hexadecimal after 0x."""

    to: str
    value: Annotated[U256Digits, BeforeValidator(_from_hex)]
    data: HexBytes
    chain_id: U64Digits


def deposit_call(requested: RequestedTransaction, request: BridgeRequest, *, source_id: int) -> CallTarget:
    """Return the deposit for the sender under the order's id. Raises: Rejected("unsafe_instructions")."""
    depositor, order_id = _arguments(requested, request, DEPOSITORY, _DEPOSIT, source_id=source_id)
    if depositor not in (request.sender, ZERO_EVM_ADDRESS):
        raise Rejected("unsafe_instructions")
    return CallTarget(DEPOSITORY, request.amount.units, _DEPOSIT.encode(request.sender, order_id))


def lifi_deposit_call(
    requested: RequestedTransaction, request: BridgeRequest, *, source_id: int, destination_id: int
) -> CallTarget:
    """Return the same by LI.FI's contract, without swaps or calls. Raises: Rejected("unsafe_instructions")."""
    bridge, order = _arguments(requested, request, LIFI_DIAMOND, _VIA_LIFI, source_id=source_id)
    asset, receiver, units, destination, swaps, calls = bridge[4:]
    is_right = (
        (asset, receiver, order[1]) == (ZERO_EVM_ADDRESS, request.recipient, request.sender)
        and (units, destination, swaps, calls) == (request.amount.units, destination_id, False, False)
    )  # fmt: skip
    if not is_right:
        raise Rejected("unsafe_instructions")
    return CallTarget(LIFI_DIAMOND, request.amount.units, _VIA_LIFI.encode(bridge, order))


def _arguments(
    requested: RequestedTransaction, request: BridgeRequest, contract: str, function: Function, *, source_id: int
) -> tuple[Any, ...]:
    """Compare contract, chain, value and function, and return the arguments. Raises: Rejected."""
    try:
        to = to_checksum_address(requested.to)
        arguments = function.decode(requested.data)
    except ValueError:
        raise Rejected("unsafe_instructions") from None
    if (to, requested.value, requested.chain_id) != (contract, request.amount.units, source_id):
        raise Rejected("unsafe_instructions")
    return arguments


_TOTAL_SECONDS = 12.0
_TOO_SMALL = ("too_low", "too low", "too small", "gher_than_amount")
"""Words of error codes and messages; LI.FI's FEES_HIGHER_THAN_AMOUNT is misspelled in its documentation."""


@dataclass(frozen=True, slots=True)
class OrderQuote:
    """A service's offer for a deposit: its call is encoded again from the decoded fields."""

    target: CallTarget
    minimum_units: int
    seconds: int
    terms: Terms


@dataclass(frozen=True, slots=True)
class OrderState:
    """An order's state according to the service; the chain has to confirm the payment `tx_hash`."""

    phase: BridgePhase
    note: str | None = None
    tx_hash: str | None = None


class OrderService(ABC):
    """A service that takes deposits and pays on another chain. Opens no connection before the first request."""

    name: ClassVar[str]
    """The stored name by which a bridge finds its service again."""
    route: ClassVar[str]

    key_header: ClassVar[str]

    def __init__(self, base_url: str, source_id: int, destination_id: int, access: ServiceAccess = KEYLESS) -> None:
        """Store the base address, the ids of both chains, and the plan: its limit is that of quotes only."""
        self._source_id, self._destination_id = source_id, destination_id
        self._url = base_url.rstrip("/")
        self._quotes = RateLimitedClient(self.name, access, self.key_header, total_seconds=_TOTAL_SECONDS)
        self._states = HttpClient(
            connect_seconds=3.0, total_seconds=_TOTAL_SECONDS, headers=access.headers(self.key_header)
        )

    @abstractmethod
    def quote(self, request: BridgeRequest) -> OrderQuote:
        """Request an order. Raises: Rejected, as `read_quote` does; Rejected("unsafe_instructions")."""

    @abstractmethod
    def order_state(self, terms: Terms, source_hash: str) -> OrderState:
        """Return an order's state. Raises: Unreachable."""

    def _read_state(self, path: str, query: Mapping[str, str], read: Callable[[object], T]) -> T:
        response = self._states.get(self._url + path, query=query)
        with suppress(Unreachable):
            if response.status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                return response.read(read)
        raise Unreachable("bridge_service")


def _refusal_reason(status: int, body: object) -> str:
    words = str(body).lower()
    is_small = any(part in words for part in _TOO_SMALL)
    return "amount_too_small" if is_small and status < HTTPStatus.INTERNAL_SERVER_ERROR else "quote_unavailable"


_LIFI_STATUSES = {("DONE", "COMPLETED"): BridgePhase.ARRIVED, ("DONE", "REFUNDED"): BridgePhase.REFUNDED}
"""Only these are final; PARTIAL is another token than requested."""


class _LifiQuote(ForeignModel):
    transaction_request: RequestedTransaction
    minimum_units: U256Digits = Field(validation_alias=AliasPath("estimate", "toAmountMin"))
    seconds: Seconds = Field(0, validation_alias=AliasPath("estimate", "executionDuration"))


class _LifiState(ForeignModel):
    status: str = ""
    substatus: OptionalText = None
    tx_hash: OptionalOrderId = Field(None, validation_alias=AliasPath("receiving", "txHash"))


class LifiOrderService(OrderService):
    name = "lifi"
    route = "LI.FI, Relay"
    key_header = "x-lifi-api-key"

    def quote(self, request: BridgeRequest) -> OrderQuote:
        query = {
            "fromChain": str(self._source_id), "toChain": str(self._destination_id),
            "fromToken": ZERO_EVM_ADDRESS, "toToken": ZERO_EVM_ADDRESS,
            "fromAmount": str(request.amount.units), "fromAddress": request.sender, "toAddress": request.recipient,
            "slippage": "0.005", "order": "FASTEST", "allowBridges": "relaydepository",
        }  # fmt: skip

        def parse(body: Any) -> OrderQuote:
            quote = _LifiQuote.read(body)
            target = lifi_deposit_call(
                quote.transaction_request, request, source_id=self._source_id, destination_id=self._destination_id
            )
            return OrderQuote(target, quote.minimum_units, quote.seconds, terms={})

        send = partial(self._quotes.get, f"{self._url}/quote", query=query)
        return read_quote(self.name, send, parse, _refusal_reason)

    def order_state(self, terms: Terms, source_hash: str) -> OrderState:
        query = {"txHash": source_hash, "fromChain": str(self._source_id), "toChain": str(self._destination_id)}
        state = self._read_state("/status", query, _LifiState.read)
        return OrderState(
            _LIFI_STATUSES.get((state.status, state.substatus or ""), BridgePhase.WAITING),
            note=f"lifi_{state.substatus or state.status}".lower()[:40],
            tx_hash=state.tx_hash,
        )


_RELAY_STATUSES = {
    "success": BridgePhase.ARRIVED,
    "refund": BridgePhase.REFUNDED,
    "refunded": BridgePhase.REFUNDED,  # the documentation has had both
}

_RELAY_OUTPUT = "details", "currencyOut"


class _RelayStep(ForeignModel):
    kind: str
    items: Items[Any]


class _RelayQuote(ForeignModel):
    steps: Items[_RelayStep]
    minimum_units: U256Digits | None = Field(None, validation_alias=AliasPath(*_RELAY_OUTPUT, "minimumAmount"))
    units: U256Digits = Field(0, validation_alias=AliasPath(*_RELAY_OUTPUT, "amount"))
    seconds: Seconds = Field(0, validation_alias=AliasPath("details", "timeEstimate"))


class _RelayDeposit(ForeignModel):
    request_id: OrderId
    transaction: RequestedTransaction = Field(validation_alias=AliasPath("items", 0, "data"))


class _RelayState(ForeignModel):
    # An order that is not known yet has none.
    status: str = "unknown"
    tx_hashes: OptionalItems[OrderId] = ()


class RelayOrderService(OrderService):
    name = "relay"
    route = "Relay"
    key_header = "x-api-key"

    def quote(self, request: BridgeRequest) -> OrderQuote:
        query = {
            "user": request.sender, "recipient": request.recipient,
            "originChainId": self._source_id, "destinationChainId": self._destination_id,
            "originCurrency": ZERO_EVM_ADDRESS, "destinationCurrency": ZERO_EVM_ADDRESS,
            "amount": str(request.amount.units), "tradeType": "EXACT_INPUT",
            # Without it an order that fails is not refunded.
            "refundTo": request.sender,
        }  # fmt: skip

        def parse(body: Any) -> OrderQuote:
            quote = _RelayQuote.read(body)
            if [step.kind for step in quote.steps] != ["transaction"] or len(quote.steps[0].items) != 1:
                raise Rejected("unsafe_instructions")
            deposit = _RelayDeposit.read(body["steps"][0])
            return OrderQuote(
                target=deposit_call(deposit.transaction, request, source_id=self._source_id),
                minimum_units=quote.minimum_units or quote.units,
                seconds=quote.seconds,
                terms={"request_id": deposit.request_id},
            )

        send = partial(self._quotes.post, f"{self._url}/quote/v2", json.dumps(query).encode())
        return read_quote(self.name, send, parse, _refusal_reason)

    def order_state(self, terms: Terms, source_hash: str) -> OrderState:
        query = {"requestId": str(terms["request_id"])}
        state = self._read_state("/intents/status/v3", query, _RelayState.read)
        return OrderState(
            _RELAY_STATUSES.get(state.status, BridgePhase.WAITING),
            note=f"relay_{state.status}"[:40],
            tx_hash=state.tx_hashes[-1] if state.tx_hashes else None,
        )
