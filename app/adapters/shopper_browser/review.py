"""The last look before the order: what it costs, whether it is what was asked for, and where it goes."""

from __future__ import annotations

from app.adapters.shopper_browser import address, cart, extras, money, signals
from app.adapters.shopper_browser.snapshot import Control, Snapshot
from app.adapters.shopper_browser.trip import Trip
from app.ports.shopper import Failed, Review, Trouble

_LONGEST_METHOD = 80


def read(trip: Trip, seen: Snapshot) -> Review:
    """Check everything that can be checked and read the total. Raises: Failed."""
    trip.learn(seen)
    rows = money.labelled(seen.text)
    total = money.total_of(rows)
    if total is None:
        raise Failed(Trouble.PRICE_UNKNOWN, "The shop shows no total that can be read before the order.")
    total_nanos = trip.in_usd(total, seen)
    _assert_one_currency(trip, rows, seen)
    cart.compare(trip, seen, where="order")
    if not trip.goods_seen:
        raise Failed(
            Trouble.CART_MISMATCH,
            "The shop does not show what the goods cost, so the order cannot be checked.",
        )
    if total_nanos < trip.goods_nanos and not any(row.part is money.Part.DISCOUNT for row in rows):
        raise Failed(Trouble.CART_MISMATCH, "The order costs less than the product and its quantity do.")
    if not trip.is_guest and not trip.signed_in:
        raise Failed(
            Trouble.LOGIN_FAILED,
            "The shop offered no way to sign in, and with credentials nothing is bought as a guest.",
        )
    extras.assert_none(trip, seen)
    address.assert_shown(trip, seen)
    method = payment_method(seen)
    pending = method is not None and bool(signals.UNPAID.search(method))
    return Review(total_nanos, method, shipping_method(seen), pending)


def payment_method(seen: Snapshot) -> str | None:
    """Return how it is paid, as far as the page says so."""
    return (
        _chosen(seen, is_payment)
        or _line(seen, signals.SAFE_PAYMENT.search)
        or _line(seen, signals.CARD.search)
    )


def shipping_method(seen: Snapshot) -> str | None:
    """Return how it is sent, as far as the page says so."""
    return _chosen(
        seen,
        lambda control: (
            not is_payment(control) and bool(signals.SHIPPING.search(f"{control.group} {control.label}"))
        ),
    )


def is_payment(control: Control) -> bool:
    """Tell whether a choice is about payment."""
    text = f"{control.group} {control.name} {control.label}"
    return bool(
        signals.PAYMENT.search(text)
        or signals.CARD.search(text)
        or signals.SAFE_PAYMENT.search(control.label)
    )


def _chosen(seen: Snapshot, about: object) -> str | None:
    for control in seen.controls:
        if (
            control.type == "radio"
            and control.checked
            and control.label
            and callable(about)
            and about(control)
        ):
            return control.label[:_LONGEST_METHOD]
    return None


def _line(seen: Snapshot, found: object) -> str | None:
    lines = (line.strip() for line in seen.text.splitlines())
    return next(
        (line for line in lines if callable(found) and 3 < len(line) < _LONGEST_METHOD and found(line)), None
    )


def _assert_one_currency(trip: Trip, rows: list[money.Labelled], seen: Snapshot) -> None:
    """Refuse a page on which the total stands in two currencies."""
    totals = {row.amount.currency for row in rows if row.part is money.Part.TOTAL}
    resolved = {money.resolve(currency, trip.signs(seen)) for currency in totals}
    if len(resolved) > 1:
        raise Failed(Trouble.PRICE_UNKNOWN, "The shop shows its total in more than one currency.")
