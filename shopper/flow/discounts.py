"""The discount of a coupon: granted if the order costs less or shows a new row, and still counted on the review."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from app.ports.shopper import FailureCode, PurchaseFailed
from shopper.flow.session import BrowserSession
from shopper.page import breakdown, prices
from shopper.page.prices import AmountKind, LabelledAmount
from shopper.page.snapshot import PageSnapshot


def granted_nanos(before: PageSnapshot, now: PageSnapshot) -> int:
    """Return what the order costs less than before, or the discount in a new row; 0 if it costs more than before."""
    rows, rows_now = breakdown.labelled_amounts(before), breakdown.labelled_amounts(now)
    total, total_now = prices.total_of(rows), prices.total_of(rows_now)
    if total is not None and total_now is not None and total_now.nanos != total.nanos:
        return max(0, total.nanos - total_now.nanos)
    known = _discounts(rows)
    return sum(nanos for row, nanos in _discounts(rows_now).items() if row not in known)


def shown_nanos(snapshot: PageSnapshot, code: str) -> int:
    """Return the discount in the rows of a page that name the code; 0 without."""
    named = re.compile(rf"(?<!\w){re.escape(code)}(?!\w)", re.IGNORECASE)
    rows = [row for row in breakdown.labelled_amounts(snapshot) if named.search(row.label)]
    return sum(_discounts(rows).values())


def counted_rows(session: BrowserSession, rows: Sequence[LabelledAmount]) -> list[LabelledAmount]:
    """Return the rows of a review that counts the discount, in a row of its own or in the price of the goods.

    Raises: PurchaseFailed(coupon_not_applied).
    """
    if session.request.coupon_code is None:
        return list(rows)
    if not session.coupon_discount_nanos:
        raise not_applied(
            "The coupon code could not be entered."
            if session.coupon_sent
            else "The shop offered no field for a coupon code up to its review."
        )
    has_row = sum(_discounts(rows).values()) >= session.coupon_discount_nanos
    if has_row and prices.goods_match(rows, session.goods_nanos) is not False:
        return list(rows)
    session.coupon_reduction_nanos = session.coupon_discount_nanos
    if prices.goods_match(rows, session.goods_nanos) is not True:
        shown = breakdown.describe(rows)
        raise not_applied(f"The shop's review does not show the coupon's discount. {shown}", quoted=shown)
    # "Ticket (voucher used) $9.60" is the price, not the discount.
    return [
        replace(row, kind=AmountKind.OTHER)
        if row.kind is AmountKind.DISCOUNT and row.amount.nanos == session.goods_nanos
        else row
        for row in rows
    ]


def not_applied(message: str, *, quoted: str = "") -> PurchaseFailed:
    """Return the failure of a coupon; `quoted` is the part of the message that was taken from a page."""
    return PurchaseFailed(FailureCode.COUPON_NOT_APPLIED, f"{message} Nothing was ordered.", quoted=(quoted,))


def _discounts(rows: Iterable[LabelledAmount]) -> dict[tuple[str, int], int]:
    return {(row.label.lower(), row.amount.nanos): row.amount.nanos for row in rows if row.kind is AmountKind.DISCOUNT}
