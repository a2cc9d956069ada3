"""An errand from its first page to its end. The order button is pressed in one place, after it was allowed."""

from __future__ import annotations

import contextlib
import re

from playwright.sync_api import BrowserContext

from app.adapters.shopper_browser import cart, checkout, login, money, product, review, signals
from app.adapters.shopper_browser.snapshot import Button, Snapshot
from app.adapters.shopper_browser.tab import Gone, Tab
from app.adapters.shopper_browser.trip import Trip, same
from app.ports.shopper import Bought, Errand, Failed, Review, Sender, Trouble, Unclear

_CONFIRMATION_SECONDS = 30.0
_TRIES_TO_BE_READY = 4
# A billion dollars: what is beyond is no total.
_LARGEST_TOTAL_NANOS = 10**18
_NUMBER = (
    re.compile(
        r"\b(?:order|purchase|confirmation|reference|booking|bestell\w*|commande)\s*"
        r"(?:number|no\.?|nr\.?|num|id|code|reference|ref\.?|nummer|numéro)?\s*(?:is|:|\#|-|–)*\s*\#?\s*"
        r"(?P<number>(?=[A-Z0-9-]*\d)[A-Z0-9][A-Z0-9-]{2,39})\b",
        re.IGNORECASE,
    ),
    # A code of letters alone is one only where it is called a number and shouts.
    re.compile(
        r"(?i:\b(?:order|confirmation|reference|booking)\s*(?:number|no\.?|id|code|reference)\s*(?:is|:|\#)*\s*\#?\s*)"
        r"(?P<number>[A-Z][A-Z-]{3,39})\b"
    ),
)


def run(
    context: BrowserContext,
    errand: Errand,
    sender: Sender,
    *,
    confirmation_seconds: float = _CONFIRMATION_SECONDS,
) -> Bought | Review:
    """Buy, or return what a dry run has seen. Raises: Failed before the order button, Unclear after it."""
    tab = Tab(context, start=errand.url, allowed_domains=errand.allowed_domains)
    tab.hide(errand.username or "", errand.password or "")
    trip = Trip(tab, errand, sender)
    in_cart = False
    try:
        seen = product.open_page(trip)
        sender.first_page()
        trip.note("open", seen.heading or seen.title, seen.path)
        tab.refuse_cookies()
        seen = tab.look()
        trip.product = product.read(trip, seen)
        trip.picture("product")
        sender.found(trip.product)
        seen = _sign_in_and_empty(trip, seen)
        in_cart = True
        seen = product.put_into_cart(trip, seen)
        seen = _look_into_cart(trip, seen)
        seen, button = checkout.go_to_review(trip, seen)
        found, button = _review(trip, seen, button)
        trip.picture("review")
        if errand.dry_run:
            _empty_again(trip)
            return found
        button = _ready(trip, button)
    except Gone:
        trip.picture("end")
        if in_cart:
            _empty_again(trip)
        raise Failed(Trouble.STUCK, "The shop's page changed while it was being used.") from None
    except Failed as failure:
        trip.picture("end")
        if in_cart and failure.trouble is not Trouble.LEFT_DOMAIN:
            _empty_again(trip)
        raise
    except Unclear:
        trip.picture("end")
        raise
    try:
        sender.may_order(found)
    except Failed:
        _empty_again(trip)
        raise
    return _order(trip, button, found, confirmation_seconds=confirmation_seconds)


def _sign_in_and_empty(trip: Trip, seen: Snapshot) -> Snapshot:
    if not login.sign_in_first(trip, seen):
        return seen
    # What an earlier visit left behind comes back with the account.
    cart.empty(trip)
    trip.tab.open(trip.errand.url)
    trip.tab.refuse_cookies()
    return trip.tab.look()


def _look_into_cart(trip: Trip, seen: Snapshot) -> Snapshot:
    goes_straight_on = (
        checkout.place_button(seen) is not None
        and not seen.passwords
        and money.total_of(money.labelled(seen.text)) is not None
    )
    shown = None if goes_straight_on or cart.find(seen) is None else cart.open_cart(trip)
    if shown is None:
        if trip.quantity_in_cart:
            raise Failed(Trouble.OPTIONS_REQUIRED, "The shop has no field for a quantity; ask for one piece.")
        return trip.tab.look()
    shown = trip.tab.wait_for(lambda now: not signals.EMPTY_CART.search(now.text), seconds=3)
    if signals.EMPTY_CART.search(shown.text) and not money.labelled(shown.text):
        raise Failed(Trouble.CART_MISMATCH, "The product did not get into the cart.")
    trip.learn(shown)
    if trip.quantity_in_cart:
        shown = cart.set_quantity(trip, shown)
    cart.compare(trip, shown, where="cart")
    return shown


def _review(trip: Trip, seen: Snapshot, button: Button) -> tuple[Review, Button]:
    """Read the review until it holds still: totals are often counted once more after an address is known."""
    found = review.read(trip, seen)
    for _ in range(3):
        trip.tab.settle()
        again = trip.tab.look()
        next_button = checkout.place_button(again)
        if next_button is None:
            raise Gone
        button, second = next_button, review.read(trip, again)
        if second == found:
            return second, button
        found = second
    raise Failed(Trouble.PRICE_UNKNOWN, "The total on the shop's review keeps changing.")


def _ready(trip: Trip, button: Button) -> Button:
    """See that the order button could be pressed, on a page that may be drawn anew meanwhile. Raises: Gone."""
    for _ in range(_TRIES_TO_BE_READY):
        found = same(button, trip.tab.look())
        if found is not None:
            with contextlib.suppress(Gone):
                trip.tab.make_ready(found)
                return found
        trip.tab.settle()
    raise Gone


def _order(trip: Trip, button: Button, found: Review, *, confirmation_seconds: float) -> Bought:
    try:
        before = trip.tab.look()
        ready = _still_as_allowed(trip, before, button, found)
        trip.tab.press_once(ready)
        trip.note("order", button.text, before.path)
        seen = trip.tab.wait_for(lambda now: _confirms(before, now), seconds=confirmation_seconds)
        trip.tab.settle()
        trip.picture("confirmation")
        _assert_confirmed(before, seen)
        return Bought(
            order_number(seen.text),
            max(found.total_nanos, _total_confirmed(trip, seen)),
            found.payment_method,
            found.shipping_method,
            found.payment_pending,
        )
    except Unclear:
        raise
    except Exception:
        # Whatever breaks here, the button may have been pressed.
        with contextlib.suppress(Exception):
            trip.picture("confirmation")
        raise Unclear("The order button was pressed, and then the browser failed.") from None


def _still_as_allowed(trip: Trip, now: Snapshot, button: Button, found: Review) -> Button:
    """Look once more, for allowing took a while. Raises: Unclear; a page that changes may have ordered by itself."""
    ready = same(button, now)
    with contextlib.suppress(Failed):
        if ready is not None and review.read(trip, now) == found:
            return ready
    raise Unclear("The shop's review changed after the order was allowed; the button was not pressed.")


def _total_confirmed(trip: Trip, seen: Snapshot) -> int:
    """Return what the confirmation says that the order costs, in US dollars; 0 where it does not."""
    total = money.total_of(money.labelled(seen.text))
    if total is None or total.nanos > _LARGEST_TOTAL_NANOS:
        return 0
    return total.nanos if money.resolve(total.currency, trip.signs(seen)) == money.USD else 0


def _assert_confirmed(before: Snapshot, now: Snapshot) -> None:
    if not _confirms(before, now):
        raise Unclear("The order button was pressed, and the shop did not confirm the order.")


def order_number(text: str) -> str | None:
    """Return the number that a confirmation gives the order, if it can be recognised."""
    for pattern in _NUMBER:
        for match in pattern.finditer(text):
            if not re.fullmatch(r"(19|20)\d\d-\d\d-\d\d", match["number"]):
                return match["number"]
    return None


def _confirms(before: Snapshot, now: Snapshot) -> bool:
    """Tell whether a page confirms the order: words of thanks that were not there before, and no order button."""
    fresh = "\n".join(line for line in now.text.splitlines() if line not in set(before.text.splitlines()))
    if signals.NOT_PLACED.search(fresh) or checkout.place_button(now) is not None:
        return False
    return bool(signals.THANKS.search(f"{fresh}\n{now.heading if now.heading != before.heading else ''}"))


def _empty_again(trip: Trip) -> None:
    """Leave no full cart behind; nothing depends on it."""
    with contextlib.suppress(Failed, Gone, Unclear):
        cart.empty(trip)
