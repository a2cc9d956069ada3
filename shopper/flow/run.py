"""A purchase from its first page to its end. The order button is clicked in one place, after authorization."""

import contextlib
import re
from typing import Any

from playwright.sync_api import BrowserContext

from app.ports.shopper import (
    FailureCode,
    OrderConfirmation,
    OrderReview,
    PurchaseFailed,
    PurchaseHandler,
    PurchaseOutcomeUnknown,
    PurchaseRequest,
)
from shopper.flow import cart, checkout, delivery, login, product, review, seen
from shopper.flow.session import BrowserSession, find_same_button
from shopper.page import breakdown, keywords, prices, structured
from shopper.page.snapshot import PageButton, PageSnapshot
from shopper.page.tab import QUIET_MS, BrowserTab, PageActionFailed

_CONFIRMATION_SECONDS = 30.0
_NOT_OF_A_PAGE = frozenset(
    {FailureCode.LIMIT_EXCEEDED, FailureCode.LEFT_DOMAIN, FailureCode.SHOP_UNREACHABLE, FailureCode.PRODUCT_NOT_FOUND}
)
_READY_ATTEMPTS = 4
# A billion dollars: a greater amount is not a total.
_MAX_TOTAL_NANOS = 10**18
_ORDER_NUMBER_PATTERNS = (
    re.compile(
        r"\b(?:order|purchase|confirmation|reference|booking|bestell\w*|commande)\s*"
        r"(?:number|no\.?|nr\.?|num|id|code|reference|ref\.?|nummer|numéro)?\s*(?:is|:|\#|-|–)*\s*\#?\s*"
        r"(?P<number>(?=[A-Z0-9-]*\d)[A-Z0-9][A-Z0-9-]{2,39})\b",
        re.IGNORECASE,
    ),
    # An order number without digits must be called a number and be in capitals.
    re.compile(
        r"(?i:\b(?:order|confirmation|reference|booking)\s*(?:number|no\.?|id|code|reference)\s*(?:is|:|\#)*\s*\#?\s*)"
        r"(?P<number>[A-Z][A-Z-]{3,39})\b"
    ),
)


def run(
    context: BrowserContext,
    request: PurchaseRequest,
    handler: PurchaseHandler,
    *,
    confirmation_seconds: float = _CONFIRMATION_SECONDS,
    quiet_ms: int = QUIET_MS,
) -> OrderConfirmation | OrderReview:
    """Buy, or return the review of a dry run.

    Raises: PurchaseFailed before the order button is clicked, PurchaseOutcomeUnknown after it.
    """
    tab = BrowserTab(context, start=request.url, allowed_domains=request.allowed_domains, quiet_ms=quiet_ms)
    tab.mask(request.username or "", request.password or "", request.coupon_code or "")
    session = BrowserSession(tab, request, handler)
    in_cart = False
    try:
        snapshot = product.open_page(session)
        handler.on_first_page()
        session.record_step("open", snapshot.heading or snapshot.title, snapshot.path)
        tab.dismiss_cookie_banner()
        snapshot = tab.take_snapshot()
        session.product = product.read(session, snapshot)
        session.capture("product")
        handler.on_product(session.product)
        snapshot = _sign_in_and_empty(session, snapshot)
        in_cart = True
        snapshot = product.add_to_cart(session, snapshot)
        snapshot = _check_cart(session, snapshot)
        snapshot, button = checkout.go_to_review(session, snapshot)
        found, button = _stable_review(session, snapshot, button)
        session.capture("review")
        if request.dry_run:
            _empty_cart_after_failure(session)
            return found
        button = _wait_until_clickable(session, button)
    except PageActionFailed:
        session.capture_failure("end")
        failure = _located(session, FailureCode.STUCK, "The shop's page changed while it was being used.")
        if in_cart:
            _empty_cart_after_failure(session)
        raise failure from None
    except PurchaseFailed as ended:
        session.capture_failure("end")
        failure = _located(
            session, ended.code, ended.message, missing=ended.missing, choices=ended.choices, quoted=ended.quoted
        )
        if in_cart and ended.code is not FailureCode.LEFT_DOMAIN:
            _empty_cart_after_failure(session)
        raise failure from None
    except PurchaseOutcomeUnknown:
        session.capture_failure("end")
        raise
    try:
        handler.authorize_order(found)
    except PurchaseFailed:
        _empty_cart_after_failure(session)
        raise
    return _place_order(session, button, found, confirmation_seconds=confirmation_seconds)


def _located(session: BrowserSession, code: FailureCode, message: str, **details: Any) -> PurchaseFailed:
    """Return a failure with what the page shows, unless the page has nothing to do with it."""
    if code not in _NOT_OF_A_PAGE:
        with contextlib.suppress(PurchaseFailed, PageActionFailed):
            shown, quoted = seen.describe(session.tab.take_snapshot())
            message, details["quoted"] = f"{message} {shown}", (*details.get("quoted", ()), *quoted)
    return PurchaseFailed(code, message, **details)


def _sign_in_and_empty(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    if not login.sign_in_if_offered(session, snapshot):
        return snapshot
    # The contents of an earlier visit come back with the account.
    cart.empty_cart(session)
    session.tab.open(session.request.url)
    session.tab.dismiss_cookie_banner()
    return session.tab.take_snapshot()


def _check_cart(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    skips_cart = (
        checkout.order_button(snapshot) is not None
        and not snapshot.passwords
        and prices.total_of(breakdown.labelled_amounts(snapshot)) is not None
    )
    shown = None if skips_cart or cart.find_cart_link(session, snapshot) is None else cart.open_cart(session)
    if shown is None:
        if session.quantity_in_cart:
            raise PurchaseFailed(
                FailureCode.OPTIONS_REQUIRED, "The shop has no field for a quantity; order quantity 1."
            )
        return session.tab.take_snapshot()
    shown = session.tab.wait_for(lambda now: not keywords.EMPTY_CART.search(now.text), seconds=3)
    if keywords.EMPTY_CART.search(shown.text) and not breakdown.labelled_amounts(shown):
        raise PurchaseFailed(FailureCode.CART_MISMATCH, "The product was not added to the cart.")
    session.observe_currency(shown)
    if session.quantity_in_cart:
        shown = cart.set_quantity(session, shown)
    cart.assert_goods_match(session, breakdown.labelled_amounts(shown), where="cart")
    return shown


def _stable_review(
    session: BrowserSession, snapshot: PageSnapshot, button: PageButton
) -> tuple[OrderReview, PageButton]:
    """Read the review until it is stable: totals often change again once an address is known."""
    found = review.read(session, snapshot)
    for _ in range(3):
        session.tab.settle()
        again = session.tab.take_snapshot()
        next_button = checkout.order_button(again) or find_same_button(button, again)
        if next_button is None:
            raise PageActionFailed
        button, second = next_button, review.read(session, again)
        if second == found:
            return second, button
        found = second
    raise PurchaseFailed(FailureCode.PRICE_UNKNOWN, "The total on the shop's review keeps changing.")


def _wait_until_clickable(session: BrowserSession, button: PageButton) -> PageButton:
    """Return the order button once it can be clicked; the page may redraw. Raises: PageActionFailed."""
    for _ in range(_READY_ATTEMPTS):
        found = find_same_button(button, session.tab.take_snapshot())
        if found is not None:
            with contextlib.suppress(PageActionFailed):
                session.tab.assert_clickable(found)
                return found
        session.tab.settle()
    raise PageActionFailed


def _place_order(
    session: BrowserSession, button: PageButton, found: OrderReview, *, confirmation_seconds: float
) -> OrderConfirmation:
    try:
        before = session.tab.take_snapshot()
        ready = _assert_unchanged(session, before, button, found)
        snapshot = _click_order(session, before, ready, seconds=confirmation_seconds)
        later = _later_order_button(session, before, snapshot, ready, found)
        if later is not None:
            before = snapshot
            snapshot = _click_order(session, before, later, seconds=confirmation_seconds)
        if checkout.confirms_order(before, snapshot):
            session.capture("confirmation")
        else:
            session.capture_failure("confirmation")
        _assert_confirmed(before, snapshot)
        return OrderConfirmation(
            structured.order_number(snapshot) or order_number(snapshot.text),
            max(found.total_nanos, _confirmed_total_nanos(session, snapshot)),
            found.payment_method,
            found.shipping_method,
            found.payment_pending,
            found.amounts,
        )
    except PurchaseOutcomeUnknown:
        raise
    except Exception:
        # Whatever fails here, the button may have been clicked.
        with contextlib.suppress(Exception):
            session.capture_failure("confirmation")
        raise PurchaseOutcomeUnknown("The order button was clicked, and then the browser failed.") from None


def _click_order(session: BrowserSession, before: PageSnapshot, button: PageButton, *, seconds: float) -> PageSnapshot:
    """Click a button that was authorized, once, and return the page that confirms the order or asks for it."""
    session.tab.click_once(button)
    session.record_step("order", button.text, before.path)

    def has_result(now: PageSnapshot) -> bool:
        return checkout.confirms_order(before, now) or bool(checkout.later_order_button(before, now, button))

    snapshot = session.tab.wait_for(has_result, seconds=seconds)
    session.tab.settle()
    return snapshot if checkout.confirms_order(before, snapshot) else session.tab.take_snapshot()


def _later_order_button(
    session: BrowserSession, before: PageSnapshot, now: PageSnapshot, clicked: PageButton, found: OrderReview
) -> PageButton | None:
    """Return the order button of a review that follows what was authorized, if it is of the same order."""
    button = checkout.later_order_button(before, now, clicked)
    if button is not None:
        with contextlib.suppress(PurchaseFailed):
            delivery.assert_chosen(session, now)
            if review.read(session, now).total_nanos == found.total_nanos:
                return button
    return None


def _assert_unchanged(session: BrowserSession, now: PageSnapshot, button: PageButton, found: OrderReview) -> PageButton:
    """Compare the review again, for authorizing took a while. Raises: PurchaseOutcomeUnknown: the page may have ordered."""
    ready = find_same_button(button, now)
    with contextlib.suppress(PurchaseFailed):
        if ready is not None and review.read(session, now) == found:
            return ready
    raise PurchaseOutcomeUnknown("The shop's review changed after the order was allowed; the button was not clicked.")


def _confirmed_total_nanos(session: BrowserSession, snapshot: PageSnapshot) -> int:
    """Return the total of the confirmation, in US dollars; 0 if it shows none."""
    total = prices.total_of(breakdown.labelled_amounts(snapshot))
    if total is None or total.nanos > _MAX_TOTAL_NANOS:
        return 0
    return total.nanos if prices.resolve(total.currency, session.currency_hints(snapshot)) == prices.USD else 0


def _assert_confirmed(before: PageSnapshot, now: PageSnapshot) -> None:
    if not checkout.confirms_order(before, now):
        shown, quoted = seen.describe(now)
        raise PurchaseOutcomeUnknown(
            f"The order button was clicked, and the shop did not confirm the order. {shown}", quoted=quoted
        )


def order_number(text: str) -> str | None:
    """Return the order number of a confirmation, if it can be recognized."""
    for pattern in _ORDER_NUMBER_PATTERNS:
        for match in pattern.finditer(text):
            if not re.fullmatch(r"(19|20)\d\d-\d\d-\d\d(T\d\d)?", match["number"]):
                return match["number"]
    return None


def _empty_cart_after_failure(session: BrowserSession) -> None:
    """Try to empty the cart; nothing depends on it."""
    with contextlib.suppress(PurchaseFailed, PageActionFailed, PurchaseOutcomeUnknown):
        cart.empty_cart(session)
