"""The structured data of a page: schema.org in JSON-LD, microdata and RDFa. No I/O.

It is code, not text: the same in every language. It may lie, so nothing that costs money is decided by it alone.
"""

from collections.abc import Iterator
from typing import Any

from shopper.page import json_ld, prices
from shopper.page.snapshot import PageSnapshot

_MAX_DEPTH = 8
_CONTAINERS = ("@graph", "offers", "mainEntity", "hasVariant")


def offers(snapshot: PageSnapshot) -> list[dict[str, Any]]:
    """Return the offers of the page's products."""
    return [node for node in _nodes(snapshot) if _is_a(node, "Offer") or ("price" in node and "priceCurrency" in node)]


def order_number(snapshot: PageSnapshot) -> str | None:
    """Return the number of the order that the page describes, if it describes one."""
    found = [node.get("orderNumber") for node in _nodes(snapshot) if _is_a(node, "Order")]
    text = str(next((number for number in found if number), "") or snapshot.declared.get("order_number", ""))
    return text.strip()[:40] or None


def order_total_nanos(snapshot: PageSnapshot) -> int | None:
    """Return the amount that is due for the order that the page describes, if it describes one."""
    texts = [snapshot.declared.get("total", "")]
    for node in _nodes(snapshot):
        due = node.get("totalPaymentDue")
        if isinstance(due, dict) and (_is_a(node, "Order") or _is_a(node, "Invoice")):
            texts.append(str(due.get("price") or due.get("value") or ""))
    return next((nanos for text in texts if (nanos := prices.parse_decimal(text)) is not None), None)


def _is_a(node: dict[str, Any], name: str) -> bool:
    types = node.get("@type")
    return any(str(kind).rpartition("/")[2] == name for kind in (types if isinstance(types, list) else [types]))


def _nodes(snapshot: PageSnapshot) -> Iterator[dict[str, Any]]:
    for text in snapshot.json_ld:
        yield from _within(json_ld.parse(text), depth=0)


def _within(node: Any, *, depth: int) -> Iterator[dict[str, Any]]:
    if depth > _MAX_DEPTH:
        return
    if isinstance(node, list):
        for inner in node:
            yield from _within(inner, depth=depth + 1)
    elif isinstance(node, dict):
        yield node
        # An offer's own parts, such as its shipping, are no offers.
        if not (_is_a(node, "Offer") or ("price" in node and "priceCurrency" in node)):
            for name in _CONTAINERS:
                yield from _within(node.get(name), depth=depth + 1)
