"""Reading the exchange's answers: JSON with its numbers as they were written, checked as far as we rely on it.

Optional members come and go over there, so documents pass through whole and only what is used is looked at.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import NoReturn

from app.core.json_depth import is_nested_too_deeply
from app.ports.errors import Unreachable
from app.ports.perpdex import Json, Market, Topic

_MAX_DEPTH = 32
_MAX_SIZE_DECIMALS = 8
_MAX_MARKETS = 10_000
_MAX_SYMBOL_LETTERS = 40
_LARGEST_EXPONENT = 300
_ROWS_PER_WEIGHT = 20
_RATE_MEMBERS = {
    "funding_rate": "funding",
    "premium": "premium",
    "mark_price": "markPx",
    "oracle_price": "oraclePx",
    "open_interest": "openInterest",
}


def parse(body: bytes) -> Json:
    """Read an answer's JSON. Raises: Unreachable("unexpected_answer")."""
    if is_nested_too_deeply(body, _MAX_DEPTH):
        raise unexpected()
    try:
        return json.loads(body, parse_float=_fraction, parse_constant=_refuse_constant)
    except (ValueError, RecursionError, ArithmeticError):
        raise unexpected() from None


def read(topic: Topic, document: Json) -> Json:
    """Return what an answer says about a topic, in the exchange's own words; None for the book of no market.

    Raises: Unreachable("unexpected_answer").
    """
    match topic:
        case Topic.ACCOUNT:
            _require(isinstance(document, dict) and _are_objects(document.get("assetPositions")))
        case Topic.SPOT:
            _require(isinstance(document, dict) and _are_objects(document.get("balances")))
        case Topic.ORDERS:
            orders_in(document)
        case Topic.FILLS:
            _require(_are_objects(document))
        case Topic.MARKETS:
            markets_in(document)
        case Topic.FUNDING:
            return _rates(document)
        case Topic.MIDS:
            _require(isinstance(document, dict) and all(isinstance(mid, str) for mid in document.values()))
        case Topic.BOOK:
            return _book(document)
    return document


def markets_in(document: Json) -> tuple[Market, ...]:
    """Read the markets of a `meta` answer. Raises: Unreachable("unexpected_answer")."""
    universe: Json = document.get("universe") if isinstance(document, dict) else None
    _require(_are_objects(universe) and 0 < len(universe) <= _MAX_MARKETS)
    return tuple(_market(index, entry) for index, entry in enumerate(universe))


def orders_in(document: Json) -> list[tuple[str, int]]:
    """Read symbol and number of each open order. Raises: Unreachable("unexpected_answer")."""
    _require(_are_objects(document))
    found = [(order.get("coin"), order.get("oid")) for order in document]
    _require(all(isinstance(coin, str) and type(oid) is int and 0 <= oid < 2**64 for coin, oid in found))
    return found


def surplus_weight(topic: Topic, document: Json) -> int:
    """Return what a long answer weighs beyond its question: one for every twenty fills."""
    return -(-len(document) // _ROWS_PER_WEIGHT) if topic is Topic.FILLS else 0


def unexpected() -> Unreachable:
    """Make the failure for an answer that is not what the exchange promises."""
    return Unreachable("unexpected_answer")


def _market(index: int, entry: Mapping[str, Json]) -> Market:
    name, decimals, leverage = entry.get("name"), entry.get("szDecimals"), entry.get("maxLeverage")
    _require(isinstance(name, str) and 0 < len(name) <= _MAX_SYMBOL_LETTERS)
    _require(type(decimals) is int and 0 <= decimals <= _MAX_SIZE_DECIMALS)
    _require(leverage is None or (type(leverage) is int and leverage > 0))
    return Market(
        index=index,
        symbol=str(name),
        size_decimals=decimals or 0,
        max_leverage=leverage,
        # `marginMode` is only there where positions cannot share their margin ("strictIsolated", "noCross").
        only_isolated=entry.get("onlyIsolated") is True or entry.get("marginMode") is not None,
        is_delisted=entry.get("isDelisted") is True,
    )


def _rates(document: Json) -> list[dict[str, Json]]:
    """Pair the markets of a `metaAndAssetCtxs` answer with their figures; delisted ones have no rate."""
    _require(isinstance(document, list) and len(document) == len(("meta", "contexts")))
    markets, contexts = markets_in(document[0]), document[1]
    _require(_are_objects(contexts) and len(contexts) == len(markets))
    return [
        {"symbol": market.symbol, **{ours: context.get(theirs) for ours, theirs in _RATE_MEMBERS.items()}}
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
        raise unexpected()


def _fraction(text: str) -> Decimal:
    number = Decimal(text)
    # Beyond what a JSON number holds for those who read it after us.
    if number and abs(number.adjusted()) > _LARGEST_EXPONENT:
        raise ValueError(text)
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
