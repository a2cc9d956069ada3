"""Preselected extras (subscriptions, insurance, gifts): unselected, or the purchase fails."""

from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.flow.session import BrowserSession
from shopper.page import keywords, prices
from shopper.page.snapshot import FormControl, PageSnapshot

_MAX_LINE_LENGTH = 200


def choose_one_time_purchase(session: BrowserSession, snapshot: PageSnapshot) -> PageSnapshot:
    """Choose the one-time purchase if a subscription is offered, unless a subscription was requested."""
    if _is_requested(session):
        return snapshot
    for control in snapshot.controls:
        if control.type == "radio" and keywords.ONE_TIME_PURCHASE.search(control.label) and not control.checked:
            session.tab.check(control)
            session.record_step("choose", control.label, snapshot.path)
            return session.tab.take_snapshot()
        if control.type == "select":
            once = next((option for option in control.options if keywords.ONE_TIME_PURCHASE.search(option.text)), None)
            if once is not None and not once.selected:
                session.tab.select(control, once.value)
                session.record_step("choose", once.text, snapshot.path)
                return session.tab.take_snapshot()
    return snapshot


def unwanted_boxes(session: BrowserSession, snapshot: PageSnapshot) -> list[FormControl]:
    """Return the ticked boxes for extras that were not requested: with a price of their own, or by their words."""
    own_prices = {session.goods_nanos, session.product.price_nanos if session.product else 0}
    return [
        control
        for control in snapshot.controls
        if control.type == "checkbox"
        and control.checked
        and not control.disabled
        and (
            keywords.EXTRAS.search(f"{control.label} {control.name}")
            or any(amount.nanos not in own_prices for amount in prices.amounts(control.label))
        )
        and not (control.required or keywords.TERMS.search(control.label))
    ]


def assert_no_extras(session: BrowserSession, snapshot: PageSnapshot) -> None:
    """Check that the order neither recurs nor contains extras. Raises: PurchaseFailed(cart_mismatch)."""
    if _is_requested(session):
        return
    if any(prices.amounts(control.label) for control in unwanted_boxes(session, snapshot)):
        raise PurchaseFailed(FailureCode.CART_MISMATCH, "The shop adds something to the order that cannot be removed.")
    for line in snapshot.text.splitlines():
        if (
            len(line) <= _MAX_LINE_LENGTH
            and keywords.RECURRING.search(line)
            and not keywords.NOT_RECURRING.search(line)
        ):
            raise PurchaseFailed(
                FailureCode.CART_MISMATCH,
                f"The order would recur; the shop says: {line.strip()}",
                quoted=(line.strip(),),
            )


def _is_requested(session: BrowserSession) -> bool:
    return any(
        keywords.RECURRING.search(value) or "subscri" in value.lower() for value in session.request.options.values()
    )
