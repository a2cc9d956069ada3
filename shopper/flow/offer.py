"""The price and availability on the page of a product: what it shows, confirmed by its data."""

import re
from typing import Any

from shopper.flow.session import BrowserSession
from shopper.page import page_data
from shopper.page import prices as money
from shopper.page.prices import PageAmount
from shopper.page.snapshot import PageSnapshot

_NOT_PRICE = re.compile(r"\b(was|rrp|save|from|shipping|delivery|over|per month|/mo)\b", re.IGNORECASE)


def availability(snapshot: PageSnapshot, offers: list[dict[str, Any]]) -> str:
    """Return whether the structured data say that the product is in stock, or "unknown"."""
    text = " ".join(
        [str(offer.get("availability") or "") for offer in offers] or [snapshot.declared.get("availability", "")]
    )
    if re.search(r"OutOfStock|SoldOut|Discontinued|out.of.stock", text, re.IGNORECASE):
        return "out_of_stock"
    return "in_stock" if re.search(r"InStock|LimitedAvailability|in.stock", text, re.IGNORECASE) else "unknown"


def is_sold_out_in_data(snapshot: PageSnapshot) -> bool:
    """Return whether the shop's own JSON says that nothing of what it offers is available."""
    offered = page_data.offered(snapshot)
    return bool(offered) and all(each.is_sold_out for each in offered)


def price(
    session: BrowserSession, snapshot: PageSnapshot, offers: list[dict[str, Any]]
) -> tuple[PageAmount | None, str]:
    """Return the price and where it was read: the visible amount that the data confirm, else the first one.

    Data that no visible amount confirms count only where none is visible. The shop's own JSON does not even there.
    """
    found = {
        (money.parse_decimal(str(offer.get("price") or "")), str(offer.get("priceCurrency") or "").upper())
        for offer in offers
    }
    code = snapshot.declared.get("currency", "").upper()
    values = (snapshot.declared.get("price", ""), *snapshot.machine_values)
    declared = {(nanos, code) for value in values if code and (nanos := money.parse_decimal(value)) is not None}
    own = {(nanos, each.currency) for each in page_data.offered(snapshot) for nanos in each.nanos}
    sources = [
        ("json-ld", {(nanos, code) for nanos, code in found if nanos is not None and code}),
        ("markup", declared),
        ("markup", own),
    ]
    visible = _visible_prices(snapshot)
    for source, offered in sources:
        for amount, size in visible:
            codes = {
                code
                for nanos, code in offered
                if nanos == amount.nanos and amount.currency in {code, money.DOLLAR, None}
            }
            # A note before the price, such as the cost of delivery, is smaller than the price.
            if codes and (amount is visible[0][0] or size > visible[0][1]):
                session.declared |= codes
                return PageAmount(amount.nanos, amount.currency if len(codes) > 1 else min(codes)), source
        if not visible and len(offered) == 1 and offered is not own:
            return PageAmount(*next(iter(offered))), source
    return (visible[0][0] if visible else None), "text"


def _visible_prices(snapshot: PageSnapshot) -> list[tuple[PageAmount, int]]:
    """Return the amounts of a product's page that may be its price, those after the heading first, with their sizes."""
    usable = [
        (money.amounts(price.text)[0], price.size, price.after_heading)
        for price in snapshot.prices
        if not price.struck and not _NOT_PRICE.search(price.text) and money.amounts(price.text)
    ]
    return [(amount, size) for order in (True, False) for amount, size, is_after in usable if is_after is order]
