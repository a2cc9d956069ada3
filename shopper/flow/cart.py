"""The cart: emptied before a purchase and after a failed one, and compared with the request."""

from __future__ import annotations

import re
from urllib.parse import urljoin

from app.core import money
from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.flow.session import BrowserSession, find_same_button, preferred_button
from shopper.page import autofill, breakdown, keywords, prices
from shopper.page.prices import LabelledAmount
from shopper.page.snapshot import PageButton, PageSnapshot
from shopper.page.tab import PageActionFailed

_MAX_LINES = 20
_PATHS = ("/cart", "/basket", "/bag", "/checkout/cart")
_ERROR_STATUS = 400


def find_cart_link(session: BrowserSession, snapshot: PageSnapshot) -> PageButton | None:
    """Return the link or button that leads to the cart: by its path, its words, or its count of what is in it."""
    links = [button for button in snapshot.buttons if button.href and keywords.CART_PATH.search(button.path)]
    links = [
        button
        for button in links
        if not keywords.ADD_TO_CART.search(button.text) and not keywords.REMOVE.search(button.text)
    ]
    named = [
        button
        for button in snapshot.buttons
        if keywords.VIEW_CART.search(button.text) and not keywords.ADD_TO_CART.search(button.text)
    ]
    counting = find_same_button(session.cart_link, snapshot) if session.cart_link else None
    return preferred_button(links) or preferred_button(named) or counting


def counting_link(before: PageSnapshot, now: PageSnapshot) -> PageButton | None:
    """Return the only link of which nothing but the number changed when something was added to the cart."""
    known = {(button.trail, _uncounted(button)): (button.text, button.label) for button in before.buttons}
    changed = [
        button
        for button in now.buttons
        if known.get((button.trail, _uncounted(button)), (button.text, button.label))
        != (button.text, button.label)
    ]
    return changed[0] if len(changed) == 1 else None


def _uncounted(button: PageButton) -> str:
    return re.sub(r"\d+", "", f"{button.text} {button.label} {button.href}")


def open_cart(session: BrowserSession) -> PageSnapshot | None:
    """Open the cart; return None if the shop shows none."""
    snapshot = session.tab.take_snapshot()
    target = find_cart_link(session, snapshot)
    if target is not None:
        try:
            return session.press(target, "open_cart")
        except PageActionFailed:
            return None
    for path in _PATHS:
        if session.tab.open(urljoin(session.request.url, path)) < _ERROR_STATUS:
            found = session.tab.take_snapshot()
            if keywords.EMPTY_CART.search(found.text) or _remove_buttons(found):
                return found
    return None


def empty_cart(session: BrowserSession) -> None:
    """Remove everything from the cart. What stays is found by the comparison before the order."""
    snapshot = open_cart(session)
    if snapshot is not None and not (_remove_buttons(snapshot) or keywords.EMPTY_CART.search(snapshot.text)):
        # What opened over the page may only lead to the cart.
        snapshot = open_cart(session)
    if snapshot is None:
        return
    for _ in range(_MAX_LINES):
        removals = _remove_buttons(snapshot)
        if not removals:
            return
        try:
            snapshot = session.press(removals[0], "empty_cart")
        except PageActionFailed:
            return
        confirm = [
            button for button in snapshot.buttons if button.dialog and keywords.REMOVE.search(button.text)
        ]
        if confirm:
            snapshot = session.press(confirm[0], "empty_cart")


def assert_goods_match(session: BrowserSession, rows: list[LabelledAmount], *, where: str) -> None:
    """Compare the amounts on a page with the product's price. Raises: PurchaseFailed(cart_mismatch)."""
    fits = prices.goods_match(rows, session.goods_nanos)
    if fits is False:
        raise PurchaseFailed(
            FailureCode.CART_MISMATCH,
            f"The {where} does not match the product's price: {session.request.quantity} of it cost "
            f"{money.usd_string(session.goods_nanos)}. {breakdown.describe(rows)} The cart may contain something else.",
        )
    session.goods_verified = session.goods_verified or fits is True


def set_quantity(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    """Set the quantity in the cart, if the product page had no field for it. Raises: PurchaseFailed."""
    wanted = str(session.request.quantity)
    found = [
        control
        for control in snapshot.controls
        if control.type in {"number", "text", "select"} and autofill.token_of(control) == autofill.QUANTITY
    ]
    if len(found) != 1:
        raise PurchaseFailed(
            FailureCode.OPTIONS_REQUIRED, "The shop has no field for a quantity; order quantity 1."
        )
    target = found[0]
    if target.value.strip() == wanted:
        return snapshot
    try:
        if target.type == "select":
            session.tab.select(target, wanted)
        else:
            session.tab.fill(target, wanted)
            session.tab.settle()
        snapshot = session.tab.take_snapshot()
        updates = [
            button
            for button in snapshot.buttons
            if keywords.UPDATE.search(button.text) and not button.disabled
        ]
        same_form = [button for button in updates if button.form == target.form and target.form >= 0]
        button = preferred_button(same_form or updates)
        if button is not None:
            snapshot = session.press(button, "set_quantity")
    except PageActionFailed:
        raise PurchaseFailed(FailureCode.STUCK, "The quantity could not be set in the cart.") from None
    return session.tab.wait_for(
        lambda now: prices.goods_match(breakdown.labelled_amounts(now), session.goods_nanos) is True,
        seconds=5,
    )


def _remove_buttons(snapshot: PageSnapshot) -> list[PageButton]:
    return [
        button
        for button in snapshot.buttons
        if keywords.REMOVE.search(button.text)
        and not keywords.NOT_REMOVE.search(button.text)
        # A mere cross also closes messages; one next to an amount removes a line.
        and (len(button.text) > 2 or prices.amounts(button.around))
        and not button.disabled
        and button.region not in {"footer", "nav"}
    ]
