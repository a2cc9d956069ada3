"""The amounts of a shop's order by role, and whether its total is what the parts add up to. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product


class AmountRole(StrEnum):
    """The role of an amount in an order. The values are part of the API."""

    ITEM = "item"
    SUBTOTAL = "subtotal"
    SHIPPING = "shipping"
    TAX = "tax"
    INCLUDED_TAX = "included_tax"
    """In the total already, such as the tax of prices that include it."""
    DISCOUNT = "discount"
    TOTAL = "total"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class OrderAmount:
    """An amount of an order with the shop's label; a discount is positive."""

    role: AmountRole
    label: str
    nanos: int


def adds_up(amounts: Iterable[OrderAmount], total_nanos: int) -> bool:
    """Return whether goods, shipping, taxes and the like make exactly this total.

    Shops differ in whether a tax line is in the prices already, and whether a subtotal is after the discount.
    """
    rows = list(amounts)
    goods = {row.nanos for row in rows if row.role is AmountRole.SUBTOTAL} or {_sum(rows, AmountRole.ITEM)}
    if goods == {0}:
        return False
    extra = _sum(rows, AmountRole.SHIPPING) + _sum(rows, AmountRole.OTHER)
    taxes = {0, _sum(rows, AmountRole.TAX)}
    discounts = {0, _sum(rows, AmountRole.DISCOUNT)}
    return any(base + extra + tax - discount == total_nanos for base, tax, discount in product(goods, taxes, discounts))


def _sum(rows: Iterable[OrderAmount], role: AmountRole) -> int:
    # The same row is often shown twice, in a summary and in a table.
    return sum(nanos for _, nanos in {(row.label.lower(), row.nanos) for row in rows if row.role is role})
