"""The exchange over HTTP: one POST for each query, its parsed responses, and unsigned actions for `/exchange`.

Numbers keep their spelling. The exchange adds and removes optional members, so documents are returned whole and only
what is used is checked. The order of an action's keys is part of what is signed (the exchange's documentation,
"Exchange endpoint" and "Signing").
"""

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from http import HTTPStatus
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, Strict

from app.adapters.evm.contracts.deployments import dead_end
from app.adapters.http_client import HttpClient, HttpResponse
from app.adapters.jsonrpc.endpoint import OutageLog
from app.core.foreign import U64, ForeignModel, Items, MalformedResponseError, Text, parsed, reader
from app.core.money import TokenAmount
from app.core.strict_json import parse_response
from app.ports import perpdex
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import PerpdexTopic

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PerpdexDeployment:
    """The exchange on one network.

    `source` identifies the network in what is signed for orders, `chain` and `signature_chain_id` in what is signed
    for payments. `asset_numbering` is the network with the same market numbers.
    """

    url: str
    chain: str
    signature_chain_id: str
    source: str
    asset_numbering: str


_FACTS = tomllib.loads(Path(__file__).with_name("deployments.toml").read_text("utf-8"))
DEPLOYMENTS: Mapping[str, PerpdexDeployment] = {network: PerpdexDeployment(**row) for network, row in _FACTS.items()}

_LARGEST_EXPONENT = 300
_RATE_MEMBERS = {
    "funding_rate": "funding", "premium": "premium", "mark_price": "markPx", "oracle_price": "oraclePx",
    "open_interest": "openInterest",
}  # fmt: skip
_Objects = Items[dict[str, Any]]


class _Order(ForeignModel):
    coin: str
    oid: U64


class _Market(ForeignModel):
    name: Annotated[str, Field(min_length=1, max_length=40)]
    sz_decimals: Annotated[int, Field(ge=0, le=8)]
    max_leverage: Annotated[int, Field(gt=0)] | None = None
    only_isolated: bool | None = None
    margin_mode: Any = None
    """Present only when positions cannot share their margin ("strictIsolated", "noCross")."""
    is_delisted: bool | None = None


class _Meta(ForeignModel):
    universe: Annotated[Items[_Market], Field(min_length=1, max_length=10_000)]


class _Book(ForeignModel):
    levels: Annotated[tuple[_Objects, _Objects], Strict(strict=False)]


def _objects_in(member: str) -> Callable[[object], object]:
    return reader(Annotated[_Objects, parsed(itemgetter(member))])


_read_orders: Callable[[object], tuple[_Order, ...]] = reader(Items[_Order])
_LIGHT, _HEAVY = 2, 20
_QUERIES: Mapping[PerpdexTopic, tuple[str, int, Callable[[object], object]]] = {
    PerpdexTopic.ACCOUNT: ("clearinghouseState", _LIGHT, _objects_in("assetPositions")),
    PerpdexTopic.SPOT: ("spotClearinghouseState", _LIGHT, _objects_in("balances")),
    PerpdexTopic.ORDERS: ("frontendOpenOrders", _HEAVY, _read_orders),
    PerpdexTopic.FILLS: ("userFills", _HEAVY, reader(_Objects)),
    PerpdexTopic.MARKETS: ("meta", _HEAVY, _Meta.read),
    PerpdexTopic.FUNDING: ("metaAndAssetCtxs", _HEAVY, reader(Annotated[tuple[_Meta, _Objects], Strict(strict=False)])),
    PerpdexTopic.MIDS: ("allMids", _LIGHT, reader(Annotated[Items[Text], parsed(lambda mids: mids.values())])),
    PerpdexTopic.BOOK: ("l2Book", _LIGHT, reader(_Book | None)),
}
"""The type in the request, the weight ("Rate limits"), and the check of the response."""


def read(topic: PerpdexTopic, document: perpdex.Json) -> perpdex.Json:
    """Return the document for a topic; None for the book of an unknown market. Raises: Unreachable."""
    _type, _weight, check = _QUERIES[topic]
    _checked(check, document)
    if topic is PerpdexTopic.FUNDING:
        return _rates(*document)
    if topic is PerpdexTopic.BOOK and document is not None:
        bids, asks = document["levels"]
        return {"bids": bids, "asks": asks, "time": document.get("time")}
    return document


def parse_markets(document: perpdex.Json) -> tuple[perpdex.PerpMarket, ...]:
    """Parse the markets of a `meta` response. Raises: Unreachable("unexpected_answer")."""
    return tuple(
        perpdex.PerpMarket(
            index=index, symbol=market.name, size_decimals=market.sz_decimals, max_leverage=market.max_leverage,
            only_isolated=market.only_isolated is True or market.margin_mode is not None,
            is_delisted=market.is_delisted is True,
        )
        for index, market in enumerate(_checked(_Meta.read, document).universe)
    )  # fmt: skip


def parse_orders(document: perpdex.Json) -> list[tuple[str, int]]:
    """Parse symbol and number of each open order. Raises: Unreachable("unexpected_answer")."""
    return [(order.coin, order.oid) for order in _checked(_read_orders, document)]


def _checked(check: Callable[[object], T], document: perpdex.Json) -> T:
    try:
        return check(document)
    except MalformedResponseError:
        raise Unreachable("unexpected_answer") from None


def _rates(meta: perpdex.Json, contexts: list[dict[str, perpdex.Json]]) -> list[dict[str, perpdex.Json]]:
    """Pair the markets of a `metaAndAssetCtxs` response with their figures; delisted ones have no rate."""
    markets = parse_markets(meta)
    if len(contexts) != len(markets):
        raise Unreachable("unexpected_answer")
    return [
        {
            "symbol": market.symbol,
            **{member: context.get(source_member) for member, source_member in _RATE_MEMBERS.items()},
        }
        for market, context in zip(markets, contexts, strict=True)
        if not market.is_delisted
    ]


def _fraction(text: str) -> Decimal:
    number = Decimal(text)
    # Beyond the range of a JSON number for its readers.
    if number and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(text)
    return number


def format_decimal(number: Decimal) -> str:
    """Format a positive number as the exchange requires: no exponent, no trailing zeros."""
    text = format(number, "f")
    return text.rstrip("0").rstrip(".") if "." in text else text


_BUNDLED = json.loads(Path(__file__).with_name("markets.json").read_text())


class HyperliquidExchange:
    """Sends `POST {url}/info`; usable from many threads."""

    parse_markets = staticmethod(parse_markets)
    parse_orders = staticmethod(parse_orders)
    dead_end = staticmethod(dead_end)

    def __init__(self, deployment: PerpdexDeployment, *, url: str = "") -> None:
        self._deployment = deployment
        self._info_url = f"{(url or deployment.url).rstrip('/')}/info"
        # Two thousand fills are less than a megabyte.
        self._http = HttpClient(connect_seconds=2.0, total_seconds=5.0, max_bytes=2**23)
        self._outage = OutageLog("exchange", name="perpdex")

    def query_weight(self, query: perpdex.PerpdexQuery) -> int:
        _type, weight, _check = _QUERIES[query.topic]
        return weight

    def fetch(self, query: perpdex.PerpdexQuery) -> perpdex.PerpdexReply:
        try:
            # "Addresses should be lowercased."
            body = {"type": _QUERIES[query.topic][0], "user": (query.address or "").lower(), "coin": query.symbol or ""}
            given = {name: value for name, value in body.items() if value}
            response = self._http.post(self._info_url, json.dumps(given).encode())
            document = _document(response)
            content = read(query.topic, document)
        except Unreachable as failure:
            self._outage.begin(failure.reason)
            raise
        self._outage.end()
        # One more for every twenty fills.
        surplus = -(-len(document) // 20) if query.topic is PerpdexTopic.FILLS else 0
        return perpdex.PerpdexReply(content, surplus)

    def bundled_markets(self) -> tuple[date, tuple[perpdex.PerpMarket, ...]] | None:
        if _BUNDLED["numbering"] != self._deployment.asset_numbering:
            return None
        return date.fromisoformat(_BUNDLED["day"]), parse_markets(_BUNDLED["document"])

    def order(self, market: perpdex.PerpMarket, order: perpdex.PerpOrder) -> perpdex.Action:
        wire = {
            "a": market.index, "b": order.is_buy, "p": format_decimal(order.price), "s": format_decimal(order.size),
            "r": order.is_reduce_only, "t": {"limit": {"tif": order.time_in_force.value}},
            **({} if order.client_id is None else {"c": order.client_id}),
        }  # fmt: skip
        return {"type": "order", "orders": [wire], "grouping": "na"}

    def cancel(self, orders: Sequence[tuple[int, int]]) -> perpdex.Action:
        return {"type": "cancel", "cancels": [{"a": index, "o": order_id} for index, order_id in orders]}

    def cancel_by_client_id(self, market_index: int, client_id: str) -> perpdex.Action:
        return {"type": "cancelByCloid", "cancels": [{"asset": market_index, "cloid": client_id}]}

    def set_leverage(self, market_index: int, leverage: int, *, is_cross: bool) -> perpdex.Action:
        return {"type": "updateLeverage", "asset": market_index, "isCross": is_cross, "leverage": leverage}

    def pay(self, amount: TokenAmount, destination: str, *, is_withdrawal: bool, time_ms: int) -> perpdex.Action:
        return {
            "type": "withdraw3" if is_withdrawal else "usdSend", "hyperliquidChain": self._deployment.chain,
            "signatureChainId": self._deployment.signature_chain_id, "destination": destination.lower(),
            "amount": str(amount), "time": time_ms,
        }  # fmt: skip


def _document(response: HttpResponse) -> perpdex.Json:
    """Return the parsed response. Raises: Rejected, Unreachable.

    Statuses as the documentation ("Error responses") and users of the exchange report them: 422 is a body that it
    does not understand, 429 an address's weight used up, 500 with `null` a market unknown to some queries.
    """
    if response.status == HTTPStatus.OK:
        with suppress(ValueError):
            return parse_response(response.body, parse_float=_fraction)
    if response.status == HTTPStatus.TOO_MANY_REQUESTS:
        raise Unreachable("rate_limited")
    if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        raise Unreachable("exchange_failed")
    if response.status >= HTTPStatus.BAD_REQUEST:
        raise Rejected("refused")
    raise Unreachable("unexpected_answer")
