"""The shop's own data in a page: JSON in its scripts, of any schema. No I/O.

It is code, may lie, and is often older than what scripts have drawn since. So it only helps to find and to confirm
amounts that the page shows; where the two differ, what is shown decides.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pycountry

from shopper.page import json_ld, prices
from shopper.page.snapshot import PageSnapshot

_MAX_DEPTH = 16
_PRICES = frozenset({"price", "amount", "value", "saleprice", "finalprice", "unitprice", "currentprice", "priceamount"})
_CURRENCIES = ("currencycode", "pricecurrency", "currency")
_TOTALS = frozenset({"total", "grandtotal", "totalprice", "ordertotal", "totalamount", "carttotal", "amountdue"})
_IS_AVAILABLE = frozenset({"available", "availableforsale", "instock", "isinstock", "availability"})


@dataclass(frozen=True, slots=True)
class DataPrice:
    """A price in the data: its possible values, since integers may be cents."""

    nanos: frozenset[int]
    currency: str
    is_sold_out: bool


def offered(snapshot: PageSnapshot) -> list[DataPrice]:
    """Return the prices that have a currency."""
    found = []
    for node in _nodes(snapshot):
        named = [str(node.get(name)).upper() for name in _CURRENCIES]
        code = next((each for each in named if len(each) == 3 and pycountry.currencies.get(alpha_3=each)), "")
        if code:
            states = [node[name] for name in _IS_AVAILABLE & node.keys()]
            is_sold_out = bool(states) and all(
                state is False or re.search("out.?of.?stock|sold.?out", str(state), re.IGNORECASE) for state in states
            )
            found += [
                DataPrice(values, code, is_sold_out)
                for name in _PRICES & node.keys()
                if (values := _values(node[name]))
            ]
    return found


def totals(snapshot: PageSnapshot) -> set[int]:
    """Return the possible values of what is named a total."""
    return {
        nanos
        for node in _nodes(snapshot)
        for name in _TOTALS & node.keys()
        for nanos in _values(_amount_of(node[name]))
    }


def _amount_of(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    named = {_plain(name): inner for name, inner in value.items()}
    return next((named[name] for name in ("amount", "value", "price") if name in named), None)


def _values(value: Any) -> frozenset[int]:
    nanos = prices.parse_decimal(str(value))
    if nanos is None:
        return frozenset()
    return frozenset({nanos, nanos // 100}) if isinstance(value, int) else frozenset({nanos})


def _nodes(snapshot: PageSnapshot) -> Iterator[dict[str, Any]]:
    for text in snapshot.data:
        yield from _within(json_ld.parse(text), depth=0)


def _within(node: Any, *, depth: int) -> Iterator[dict[str, Any]]:
    if depth > _MAX_DEPTH or not isinstance(node, dict | list):
        return
    if isinstance(node, dict):
        yield {_plain(name): value for name, value in node.items()}
    for inner in node.values() if isinstance(node, dict) else node:
        yield from _within(inner, depth=depth + 1)


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
