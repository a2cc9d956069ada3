"""The cart: emptied before a purchase and after a failed one, and compared with the request."""

import functools
import re
from urllib.parse import urljoin

from app.core import money
from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.flow import evidence
from shopper.flow.session import BrowserSession, find_same_button, preferred_button
from shopper.page import autofill, breakdown, keywords, prices
from shopper.page.prices import LabelledAmount
from shopper.page.snapshot import FormControl, PageButton, PageSnapshot
from shopper.page.tab import PageActionFailed

_MAX_LINES = 20
_REMOVED_SECONDS = 4
_PATHS = ("/cart", "/basket", "/bag", "/checkout/cart")
_ERROR_STATUS = 400


def find_cart_link(session: BrowserSession, snapshot: PageSnapshot) -> PageButton | None:
    """Return the link or button that leads to the cart: by its path, its count of what is in it, or its words."""
    counting = find_same_button(session.cart_link, snapshot) if session.cart_link else None
    leading = [
        button for button in snapshot.buttons if not evidence.is_named(button, keywords.ADD_TO_CART, keywords.REMOVE)
    ]
    links = [button for button in leading if button.href and keywords.CART_PATH.search(button.path)]
    return (
        preferred_button(links)
        or evidence.best(
            leading,
            # A panel that opened over the page covers what counts.
            structure=[] if any(button.dialog for button in leading) else [lambda button: button == counting],
            words=[keywords.VIEW_CART],
        )
        or counting
    )


def counting_link(before: PageSnapshot, now: PageSnapshot) -> PageButton | None:
    """Return the only link whose number alone changed when something was added to the cart."""
    known = {(button.trail, _uncounted(button)): (button.text, button.label) for button in before.buttons}
    changed = [
        button
        for button in now.buttons
        if known.get((button.trail, _uncounted(button)), (button.text, button.label)) != (button.text, button.label)
    ]
    return changed[0] if len(changed) == 1 else None


def _uncounted(button: PageButton) -> str:
    return re.sub(r"\d+", "", f"{button.text} {button.label} {button.href}")


def open_cart(session: BrowserSession) -> PageSnapshot | None:
    """Open the cart; return None if the shop shows none."""
    snapshot = session.tab.take_snapshot()
    target = find_cart_link(session, snapshot)
    guess = target or _numbered_link(snapshot)
    if guess is not None:
        try:
            found = session.click(guess, "open_cart")
        except PageActionFailed:
            return None
        # A wish list and messages are counted, too.
        if target is not None or _leads_to_checkout(found):
            return found
    for path in _PATHS:
        if session.tab.open(urljoin(session.request.url, path)) < _ERROR_STATUS:
            found = session.tab.take_snapshot()
            if keywords.EMPTY_CART.search(found.text) or _remove_buttons(found):
                return found
    return None


def _numbered_link(snapshot: PageSnapshot) -> PageButton | None:
    """Return the only link of the header with a number, which may be that of the articles in the cart."""
    numbered = [
        button
        for button in snapshot.buttons
        if button.region in {"header", "banner", "nav", "navigation"}
        and button.href.startswith("http")
        and not keywords.NOT_OF_CART.search(f"{button.text} {button.label} {button.path}")
        and re.fullmatch(r"\D*\d{1,3}\D*", button.text or button.label)
    ]
    return numbered[0] if len(numbered) == 1 else None


def empty_cart(session: BrowserSession) -> None:
    """Remove everything from the cart. What stays is found by the comparison before the order."""
    snapshot = open_cart(session)
    if snapshot is not None and not (_lines(snapshot) or keywords.EMPTY_CART.search(snapshot.text)):
        # What opened over the page may only lead to the cart.
        snapshot = open_cart(session)
    for _ in range(_MAX_LINES):
        count = len(_lines(snapshot)) if snapshot is not None else 0
        if snapshot is None or not count:
            return
        try:
            _remove_line(session, snapshot)
        except PageActionFailed:
            return
        snapshot = session.tab.wait_for(functools.partial(_has_fewer_lines, count), seconds=_REMOVED_SECONDS)
        if not _has_fewer_lines(count, snapshot):
            # What was clicked removes nothing.
            return


def _has_fewer_lines(count: int, snapshot: PageSnapshot) -> bool:
    return len(_lines(snapshot)) < count


def _remove_line(session: BrowserSession, snapshot: PageSnapshot) -> None:
    removals = _remove_buttons(snapshot)
    if not removals:
        field = _line_fields(snapshot)[0]
        session.tab.fill(field, "0")
        session.tab.submit_by_enter(field)
        session.record_step("empty_cart", "0", snapshot.path)
        return
    snapshot = session.click(removals[0], "empty_cart")
    confirm = [button for button in snapshot.buttons if button.dialog and keywords.REMOVE.search(button.text)]
    if confirm:
        session.click(confirm[0], "empty_cart")


def assert_goods_match(session: BrowserSession, rows: list[LabelledAmount], *, where: str) -> None:
    """Compare the amounts on a page with the product's price. Raises: PurchaseFailed(cart_mismatch)."""
    fits = prices.goods_match(rows, session.goods_nanos)
    if fits is False:
        raise PurchaseFailed(
            FailureCode.CART_MISMATCH,
            f"The {where} does not match the product's price: {session.request.quantity} of it cost "
            f"{money.usd_string(session.goods_nanos)}. {breakdown.describe(rows)} The cart may contain something else.",
            quoted=(breakdown.describe(rows),),
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
        raise PurchaseFailed(FailureCode.OPTIONS_REQUIRED, "The shop has no field for a quantity; order quantity 1.")
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
        updates = [button for button in snapshot.buttons if keywords.UPDATE.search(button.text) and not button.disabled]
        same_form = [button for button in updates if button.form == target.form and target.form >= 0]
        button = preferred_button(same_form or updates)
        if button is not None:
            snapshot = session.click(button, "set_quantity")
    except PageActionFailed:
        raise PurchaseFailed(FailureCode.STUCK, "The quantity could not be set in the cart.") from None
    return session.tab.wait_for(
        lambda now: prices.goods_match(breakdown.labelled_amounts(now), session.goods_nanos) is True, seconds=5
    )


def _lines(snapshot: PageSnapshot) -> list[PageButton | FormControl]:
    """Return what removes the lines of a cart: their buttons, or else the fields of their quantities."""
    return list(_remove_buttons(snapshot)) or list(_line_fields(snapshot))


def _remove_buttons(snapshot: PageSnapshot) -> list[PageButton]:
    """Return the buttons that remove a line: by identifiers, else by words, else the only one of an entry."""
    usable = [
        button
        for button in snapshot.buttons
        if not (button.disabled or button.region in {"footer", "nav"})
        and not keywords.NOT_REMOVE.search(f"{button.text} {button.code}")
        and not keywords.NOT_OF_CART.search(f"{button.text} {button.label} {button.code} {button.path} {button.action}")
    ]
    sent = [(button.form, button.action) for button in snapshot.buttons if button.submits]
    coded = [
        button
        for button in usable
        # The path of a form with several buttons, such as one around the whole cart, is not of one of them.
        if keywords.REMOVE_CODE.search(
            f"{button.code} {button.path} {button.action if sent.count((button.form, button.action)) < 2 else ''}"
        )
        and not evidence.is_named(button, keywords.PLACE_ORDER)
        and prices.amounts(button.entry_text or button.around)
    ]
    named = [
        button
        for button in usable
        if keywords.REMOVE.search(button.text)
        # A mere cross also closes messages; one next to an amount removes a line.
        and (len(button.text) > 2 or prices.amounts(button.around))
    ]
    if coded or named or not _leads_to_checkout(snapshot):
        return coded or named
    entries = [button.entry for button in snapshot.buttons if button.tag != "a"]
    # The row of a total may have the button that orders; that of an article has its link or its quantity.
    articles = {button.entry for button in snapshot.buttons if button.href}
    articles |= {control.entry for control in snapshot.controls}
    return [
        button
        for button in usable
        if button.tag != "a"
        and button.entry >= 0
        and button.entry in articles
        and entries.count(button.entry) == 1
        and prices.amounts(button.entry_text)
        and not evidence.is_named(button, keywords.UPDATE, keywords.ADD_TO_CART)
        and not _leads_on(button)
    ]


def _line_fields(snapshot: PageSnapshot) -> list[FormControl]:
    """Return the fields of quantities in the entries of a cart."""
    if not _leads_to_checkout(snapshot):
        return []
    return [
        control
        for control in snapshot.controls
        if control.type == "number"
        and control.entry >= 0
        and control.value.strip() not in {"", "0"}
        and not _enters_order(snapshot, control)
    ]


def _enters_order(snapshot: PageSnapshot, field: FormControl) -> bool:
    """Return whether Enter in a field, which clicks the first button of its form, leads on."""
    submits = [button for button in snapshot.buttons if button.submits and button.form == field.form >= 0]
    return bool(submits) and _leads_on(submits[0])


def _leads_on(button: PageButton) -> bool:
    """Return whether a button orders, or submits something to the checkout."""
    enters = button.submits and keywords.CHECKOUT_PATH.search(button.action)
    return evidence.is_named(button, keywords.PLACE_ORDER, keywords.CHECKOUT) or bool(
        enters and not keywords.CART_PATH.search(button.action)
    )


def _leads_to_checkout(snapshot: PageSnapshot) -> bool:
    """Return whether a page is that of a cart: it leads to the checkout outside its header."""
    return any(
        keywords.CHECKOUT_PATH.search(button.action if button.submits else button.path)
        for button in snapshot.buttons
        if not button.region
    )
