"""Parsing of the exchange's responses: numbers keep their spelling, and members that we use are validated.

The exchange adds and removes optional members, so documents are returned whole and only what is used is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from operator import itemgetter
from typing import Annotated, Any, TypeVar

from pydantic import Field, Strict

from app.core.foreign import U64, ForeignModel, Items, MalformedResponseError, Text, parsed, reader
from app.core.strict_json import parse_response
from app.ports.errors import Unreachable
from app.ports.perpdex import Json, PerpdexTopic, PerpMarket

T = TypeVar("T")

_MAX_SIZE_DECIMALS = 8
_MAX_MARKETS = 10_000
_MAX_SYMBOL_LETTERS = 40
_LARGEST_EXPONENT = 300
_RATE_MEMBERS = {
    "funding_rate": "funding",
    "premium": "premium",
    "mark_price": "markPx",
    "oracle_price": "oraclePx",
    "open_interest": "openInterest",
}
_Objects = Items[dict[str, Any]]


def parse(body: bytes) -> Json:
    """Parse a response's JSON. Raises: Unreachable("unexpected_answer")."""
    try:
        return parse_response(body, parse_float=_fraction)
    except ValueError:
        raise unexpected_answer() from None


class _Order(ForeignModel):
    coin: str
    oid: U64


class _Market(ForeignModel):
    name: Annotated[str, Field(min_length=1, max_length=_MAX_SYMBOL_LETTERS)]
    sz_decimals: Annotated[int, Field(ge=0, le=_MAX_SIZE_DECIMALS)]
    max_leverage: Annotated[int, Field(gt=0)] | None = None
    only_isolated: bool | None = None
    margin_mode: Any = None
    """Present only when positions cannot share their margin ("strictIsolated", "noCross")."""
    is_delisted: bool | None = None


class _Meta(ForeignModel):
    universe: Annotated[Items[_Market], Field(min_length=1, max_length=_MAX_MARKETS)]


class _Book(ForeignModel):
    levels: Annotated[tuple[_Objects, _Objects], Strict(strict=False)]


_read_orders: Callable[[object], tuple[_Order, ...]] = reader(Items[_Order])
_CHECKS: Mapping[PerpdexTopic, Callable[[object], object]] = {
    PerpdexTopic.ACCOUNT: reader(Annotated[_Objects, parsed(itemgetter("assetPositions"))]),
    PerpdexTopic.SPOT: reader(Annotated[_Objects, parsed(itemgetter("balances"))]),
    PerpdexTopic.ORDERS: _read_orders,
    PerpdexTopic.FILLS: reader(_Objects),
    PerpdexTopic.MARKETS: _Meta.read,
    PerpdexTopic.FUNDING: reader(Annotated[tuple[_Meta, _Objects], Strict(strict=False)]),
    PerpdexTopic.MIDS: reader(Annotated[Items[Text], parsed(lambda mids: mids.values())]),
    PerpdexTopic.BOOK: reader(_Book | None),
}


def read(topic: PerpdexTopic, document: Json) -> Json:
    """Return a response's document for a topic; None for the book of an unknown market.

    Raises: Unreachable("unexpected_answer").
    """
    _checked(_CHECKS[topic], document)
    if topic is PerpdexTopic.FUNDING:
        return _rates(*document)
    if topic is PerpdexTopic.BOOK and document is not None:
        bids, asks = document["levels"]
        return {"bids": bids, "asks": asks, "time": document.get("time")}
    return document


def parse_markets(document: Json) -> tuple[PerpMarket, ...]:
    """Parse the markets of a `meta` response. Raises: Unreachable("unexpected_answer")."""
    return tuple(
        PerpMarket(
            index=index,
            symbol=market.name,
            size_decimals=market.sz_decimals,
            max_leverage=market.max_leverage,
            only_isolated=market.only_isolated is True or market.margin_mode is not None,
            is_delisted=market.is_delisted is True,
        )
        for index, market in enumerate(_checked(_Meta.read, document).universe)
    )


def parse_orders(document: Json) -> list[tuple[str, int]]:
    """Parse symbol and number of each open order. Raises: Unreachable("unexpected_answer")."""
    return [(order.coin, order.oid) for order in _checked(_read_orders, document)]


def unexpected_answer() -> Unreachable:
    return Unreachable("unexpected_answer")


def _checked(check: Callable[[object], T], document: Json) -> T:
    try:
        return check(document)
    except MalformedResponseError:
        raise unexpected_answer() from None


def _rates(meta: Json, contexts: list[dict[str, Json]]) -> list[dict[str, Json]]:
    """Pair the markets of a `metaAndAssetCtxs` response with their figures; delisted ones have no rate."""
    markets = parse_markets(meta)
    if len(contexts) != len(markets):
        raise unexpected_answer()
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
