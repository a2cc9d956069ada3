"""Parsing of the exchange's responses: numbers keep their spelling, and members that we use are validated.

The exchange adds and removes optional members, so documents are returned whole and only what is used is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from app.core.strict_json import parse_response
from app.ports.errors import Unreachable
from app.ports.perpdex import Json, PerpdexTopic, PerpMarket

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


def parse(body: bytes) -> Json:
    """Parse a response's JSON. Raises: Unreachable("unexpected_answer")."""
    try:
        return parse_response(body, parse_float=_fraction)
    except ValueError:
        raise unexpected_answer() from None


def read(topic: PerpdexTopic, document: Json) -> Json:
    """Return a response's document for a topic; None for the book of an unknown market.

    Raises: Unreachable("unexpected_answer").
    """
    match topic:
        case PerpdexTopic.ACCOUNT | PerpdexTopic.SPOT:
            listed = "assetPositions" if topic is PerpdexTopic.ACCOUNT else "balances"
            _require(isinstance(document, dict) and _are_objects(document.get(listed)))
        case PerpdexTopic.ORDERS:
            parse_orders(document)
        case PerpdexTopic.FILLS:
            _require(_are_objects(document))
        case PerpdexTopic.MARKETS:
            parse_markets(document)
        case PerpdexTopic.FUNDING:
            return _rates(document)
        case PerpdexTopic.MIDS:
            _require(isinstance(document, dict) and all(isinstance(mid, str) for mid in document.values()))
        case PerpdexTopic.BOOK:
            return _book(document)
    return document


def parse_markets(document: Json) -> tuple[PerpMarket, ...]:
    """Parse the markets of a `meta` response. Raises: Unreachable("unexpected_answer")."""
    universe: Json = document.get("universe") if isinstance(document, dict) else None
    _require(_are_objects(universe) and 0 < len(universe) <= _MAX_MARKETS)
    return tuple(_market(index, entry) for index, entry in enumerate(universe))


def parse_orders(document: Json) -> list[tuple[str, int]]:
    """Parse symbol and number of each open order. Raises: Unreachable("unexpected_answer")."""
    _require(_are_objects(document))
    found = [(order.get("coin"), order.get("oid")) for order in document]
    _require(all(isinstance(coin, str) and type(oid) is int and 0 <= oid < 2**64 for coin, oid in found))
    return found


def unexpected_answer() -> Unreachable:
    """Return the failure for a response that violates the exchange's documentation."""
    return Unreachable("unexpected_answer")


def _market(index: int, entry: Mapping[str, Json]) -> PerpMarket:
    name, decimals, leverage = entry.get("name"), entry.get("szDecimals"), entry.get("maxLeverage")
    _require(isinstance(name, str) and 0 < len(name) <= _MAX_SYMBOL_LETTERS)
    _require(type(decimals) is int and 0 <= decimals <= _MAX_SIZE_DECIMALS)
    _require(leverage is None or (type(leverage) is int and leverage > 0))
    return PerpMarket(
        index=index,
        symbol=str(name),
        size_decimals=decimals or 0,
        max_leverage=leverage,
        # `marginMode` is present only when positions cannot share their margin ("strictIsolated", "noCross").
        only_isolated=entry.get("onlyIsolated") is True or entry.get("marginMode") is not None,
        is_delisted=entry.get("isDelisted") is True,
    )


def _rates(document: Json) -> list[dict[str, Json]]:
    """Pair the markets of a `metaAndAssetCtxs` response with their figures; delisted ones have no rate."""
    _require(isinstance(document, list) and len(document) == len(("meta", "contexts")))
    markets, contexts = parse_markets(document[0]), document[1]
    _require(_are_objects(contexts) and len(contexts) == len(markets))
    return [
        {
            "symbol": market.symbol,
            **{member: context.get(source_member) for member, source_member in _RATE_MEMBERS.items()},
        }
        for market, context in zip(markets, contexts, strict=True)
        if not market.is_delisted
    ]


def _book(document: Json) -> dict[str, Json] | None:
    if document is None:
        return None
    levels: Json = document.get("levels") if isinstance(document, dict) else None
    _require(isinstance(levels, list) and len(levels) == len(("bids", "asks")))
    _require(all(_are_objects(side) for side in levels))
    return {"bids": levels[0], "asks": levels[1], "time": document.get("time")}


def _are_objects(value: Json) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _require(truth: object) -> None:
    if not truth:
        raise unexpected_answer()


def _fraction(text: str) -> Decimal:
    number = Decimal(text)
    # Beyond the range of a JSON number for its readers.
    if number and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(text)
    return number
