"""The checks before the order: total, contents and address of the review."""

from app.core import money
from app.ports.shopper import FailureCode, OrderReview, PurchaseFailed
from shopper.flow import address, cart, discounts, extras
from shopper.flow.session import BrowserSession
from shopper.page import breakdown, keywords, prices, structured
from shopper.page.snapshot import FormControl, PageSnapshot

_MAX_METHOD_LENGTH = 80


def read(session: BrowserSession, snapshot: PageSnapshot) -> OrderReview:
    """Check everything that can be checked and read the total. Raises: PurchaseFailed."""
    session.observe_currency(snapshot)
    # A review is read on its own, whatever an earlier page showed.
    session.coupon_reduction_nanos = 0
    rows = breakdown.order_rows(snapshot, session.goods_nanos)
    total = prices.total_of(rows)
    if total is None:
        raise PurchaseFailed(
            FailureCode.PRICE_UNKNOWN,
            "The shop shows no total that can be read before the order, and none that the product's price, "
            f"{money.usd_string(session.goods_nanos)}, is a part of. {breakdown.describe(rows)}",
            quoted=(breakdown.describe(rows),),
        )
    rows = discounts.counted_rows(session, rows)
    total_nanos = session.in_usd(total, snapshot)
    _assert_one_currency(session, rows, snapshot)
    amounts = breakdown.order_amounts(rows, total, session.goods_nanos)
    if totals := breakdown.disagreeing_totals(rows, amounts):
        raise PurchaseFailed(
            FailureCode.PRICE_UNKNOWN,
            f"The shop shows more than one total. {breakdown.describe(totals)}",
            quoted=(breakdown.describe(totals),),
        )
    due_nanos = structured.order_total_nanos(snapshot)
    if due_nanos not in {None, total_nanos}:
        raise PurchaseFailed(
            FailureCode.PRICE_UNKNOWN,
            f"The shop's structured data name another amount due, {money.usd_string(due_nanos or 0)}. "
            f"{breakdown.describe(rows)}",
            quoted=(breakdown.describe(rows),),
        )
    cart.assert_goods_match(session, rows, where="order")
    if not session.goods_verified:
        raise PurchaseFailed(
            FailureCode.CART_MISMATCH, "The shop does not show the price of the goods, so the order cannot be checked."
        )
    if total_nanos < session.goods_nanos and not any(row.kind is prices.AmountKind.DISCOUNT for row in rows):
        raise PurchaseFailed(
            FailureCode.CART_MISMATCH, "The order costs less than the product's price times its quantity."
        )
    if not session.is_guest and not session.signed_in:
        raise PurchaseFailed(
            FailureCode.LOGIN_FAILED,
            "The shop offered no sign-in, and a purchase with credentials is never made as a guest.",
        )
    extras.assert_no_extras(session, snapshot)
    address.assert_address_shown(session, snapshot)
    method = payment_method(snapshot)
    pending = method is not None and bool(keywords.PAYMENT_ON_DELIVERY.search(method))
    shipping = shipping_method(snapshot) or session.delivery_chosen
    return OrderReview(total_nanos, method, shipping, pending, amounts)


def payment_method(snapshot: PageSnapshot) -> str | None:
    """Return the payment method, if the page shows it."""
    return (
        _chosen_label(snapshot, is_payment)
        or _line(snapshot, keywords.OFFLINE_PAYMENT.search)
        or _line(snapshot, keywords.CARD.search)
    )


def shipping_method(snapshot: PageSnapshot) -> str | None:
    """Return the shipping method, if the page shows it."""
    return _chosen_label(
        snapshot,
        lambda control: (
            not is_payment(control)
            and not keywords.ADDRESS.search(control.label)
            and bool(keywords.SHIPPING.search(f"{control.group} {control.label}"))
        ),
    )


def is_payment(control: FormControl) -> bool:
    """Return whether a choice is about payment."""
    text = f"{control.group} {control.name} {control.label}"
    return bool(
        keywords.PAYMENT.search(text) or keywords.CARD.search(text) or keywords.OFFLINE_PAYMENT.search(control.label)
    )


def _chosen_label(snapshot: PageSnapshot, about: object) -> str | None:
    for control in snapshot.controls:
        if control.type == "radio" and control.checked and control.label and callable(about) and about(control):
            return control.label[:_MAX_METHOD_LENGTH]
    return None


def _line(snapshot: PageSnapshot, found: object) -> str | None:
    lines = (line.strip() for line in snapshot.text.splitlines())
    return next(
        (line for line in lines if callable(found) and 3 < len(line) < _MAX_METHOD_LENGTH and found(line)), None
    )


def _assert_one_currency(session: BrowserSession, rows: list[prices.LabelledAmount], snapshot: PageSnapshot) -> None:
    """Refuse a page that shows the total in two currencies."""
    totals = {row.amount.currency for row in rows if row.kind is prices.AmountKind.TOTAL}
    resolved = {prices.resolve(currency, session.currency_hints(snapshot)) for currency in totals}
    if len(resolved) > 1:
        raise PurchaseFailed(FailureCode.PRICE_UNKNOWN, "The shop shows its total in more than one currency.")
