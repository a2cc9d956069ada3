"""The cart: emptied before anything is put in and after a trip without an order, and compared with what was asked."""

from __future__ import annotations

from urllib.parse import urljoin

from app.adapters.shopper_browser import fields, money, signals
from app.adapters.shopper_browser.snapshot import Button, Snapshot
from app.adapters.shopper_browser.tab import Gone
from app.adapters.shopper_browser.trip import Trip, best
from app.ports.shopper import Failed, Trouble

_MAX_LINES = 20
_PATHS = ("/cart", "/basket", "/bag", "/checkout/cart")
_BAD_STATUS = 400


def find(seen: Snapshot) -> Button | None:
    """Return what leads to the cart."""
    links = [button for button in seen.buttons if button.href and signals.CART_PATH.search(button.path)]
    links = [
        button
        for button in links
        if not signals.ADD.search(button.text) and not signals.REMOVE.search(button.text)
    ]
    named = [
        button
        for button in seen.buttons
        if signals.VIEW_CART.search(button.text) and not signals.ADD.search(button.text)
    ]
    return best(links) or best(named)


def open_cart(trip: Trip) -> Snapshot | None:
    """Go to the cart; None where the shop shows none."""
    seen = trip.tab.look()
    target = find(seen)
    if target is not None:
        try:
            return trip.press(target, "open_cart")
        except Gone:
            return None
    for path in _PATHS:
        if trip.tab.open(urljoin(trip.errand.url, path)) < _BAD_STATUS:
            found = trip.tab.look()
            if signals.EMPTY_CART.search(found.text) or _removals(found):
                return found
    return None


def empty(trip: Trip) -> None:
    """Take everything out of the cart. What cannot be taken out is found by the comparison before the order."""
    seen = open_cart(trip)
    if seen is None:
        return
    for _ in range(_MAX_LINES):
        removals = _removals(seen)
        if not removals:
            return
        try:
            seen = trip.press(removals[0], "empty_cart")
        except Gone:
            return
        confirm = [button for button in seen.buttons if button.dialog and signals.REMOVE.search(button.text)]
        if confirm:
            seen = trip.press(confirm[0], "empty_cart")


def compare(trip: Trip, seen: Snapshot, *, where: str) -> None:
    """Hold what a page says about the goods against what was asked for. Raises: Failed(cart_mismatch)."""
    fits = money.goods_fit(money.labelled(seen.text), trip.goods_nanos)
    if fits is False:
        raise Failed(
            Trouble.CART_MISMATCH,
            f"The {where} does not cost what the product and its quantity do; something else may be in the cart.",
        )
    trip.goods_seen = trip.goods_seen or fits is True


def set_quantity(trip: Trip, seen: Snapshot) -> Snapshot:
    """Set the quantity in the cart, where the product's page had no field for it. Raises: Failed."""
    wanted = str(trip.errand.quantity)
    found = [
        control
        for control in seen.controls
        if control.type in {"number", "text", "select"} and fields.token_of(control) == fields.QUANTITY
    ]
    if len(found) != 1:
        raise Failed(Trouble.OPTIONS_REQUIRED, "The shop has no field for a quantity; ask for one piece.")
    target = found[0]
    if target.value.strip() == wanted:
        return seen
    try:
        if target.type == "select":
            trip.tab.select(target, wanted)
        else:
            trip.tab.type(target, wanted)
            trip.tab.settle()
        seen = trip.tab.look()
        updates = [
            button for button in seen.buttons if signals.UPDATE.search(button.text) and not button.disabled
        ]
        same_form = [button for button in updates if button.form == target.form and target.form >= 0]
        button = best(same_form or updates)
        if button is not None:
            seen = trip.press(button, "set_quantity")
    except Gone:
        raise Failed(Trouble.STUCK, "The quantity could not be set in the cart.") from None
    return trip.tab.wait_for(
        lambda now: money.goods_fit(money.labelled(now.text), trip.goods_nanos) is True, seconds=5
    )


def _removals(seen: Snapshot) -> list[Button]:
    return [
        button
        for button in seen.buttons
        if signals.REMOVE.search(button.text)
        and not signals.NOT_REMOVE.search(button.text)
        # A mere cross closes messages, too; what stands beside an amount takes a line out.
        and (len(button.text) > 2 or money.amounts(button.around))
        and not button.disabled
        and button.region not in {"footer", "nav"}
    ]
