"""The role of each amount of a page: by rows and their sum first, by labels next, by the page's text last. No I/O.

The sum decides which amount is the total: a part of it is none, whatever its label. A label that names another amount
is a contradiction, or the total of a page without a sum.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from app.core import money
from app.core.order_amounts import AmountRole, OrderAmount, adds_up
from shopper.page import page_data, prices, structured
from shopper.page.prices import AmountKind, LabelledAmount, PageAmount
from shopper.page.snapshot import AmountRow, PageSnapshot

_SIGN = re.compile(r"[-\u2212\u2013]\s?(?=\D{0,4}\d)|[()]")
_MAX_ROWS = 20
_MAX_PARTS = 8
_MAX_SEEN = 8
_MAX_LABEL_LENGTH = 80
_ROLES = {
    AmountKind.TOTAL: AmountRole.TOTAL,
    AmountKind.GOODS: AmountRole.SUBTOTAL,
    AmountKind.SHIPPING: AmountRole.SHIPPING,
    AmountKind.TAX: AmountRole.TAX,
    AmountKind.CONTAINED: AmountRole.INCLUDED_TAX,
    AmountKind.DISCOUNT: AmountRole.DISCOUNT,
    AmountKind.PART: AmountRole.OTHER,
}
# What an option can cost. A total or a subtotal counts wherever it is.
_KINDS_OF_OPTIONS = frozenset((AmountKind.SHIPPING, AmountKind.TAX, AmountKind.OTHER))


@dataclass(frozen=True, slots=True)
class _Row:
    group: int
    found: LabelledAmount


def labelled_amounts(snapshot: PageSnapshot) -> list[LabelledAmount]:
    """Return the labelled amounts of a page: those of its rows, and from its text what no row contains.

    An amount that is crossed out is none, and the price of an option only if it is chosen and in no row of its own.
    """
    rows = _rows(snapshot)
    by_structure = [row.found for row in rows if row.found.kind is not AmountKind.OTHER]
    known = {row.amount.nanos for row in by_structure}
    has_total = any(row.kind is AmountKind.TOTAL for row in by_structure)
    struck = {amount.nanos for row in snapshot.amounts if row.struck for amount in prices.amounts(row.amount)}
    options = {amount.nanos for row in snapshot.amounts if row.option for amount in prices.amounts(row.amount)}
    shown = {row.found.amount.nanos for row in rows}
    return by_structure + [
        row
        for row in prices.labelled_amounts(snapshot.text)
        if row.amount.nanos not in struck - shown
        and not (row.kind in _KINDS_OF_OPTIONS and row.amount.nanos in options - shown)
        and (row.amount.nanos not in known or (row.kind is AmountKind.TOTAL and not has_total))
    ]


def order_rows(snapshot: PageSnapshot, goods_nanos: int) -> list[LabelledAmount]:
    """Return the amounts of an order: those of a table or list whose last is the sum, or else the labelled ones.

    The sum contains the price of the goods, and nothing on the page costs more. Where the labels name a total that is
    no part of it, they are returned: they agree and say what the parts are, or they contradict. Without a sum and
    labels, the largest amount that is shown is the total if the page's data name it so.
    """
    rows = labelled_amounts(snapshot)
    labelled = prices.total_of(rows)
    entries = _rows(snapshot)
    struck = {amount.nanos for row in snapshot.amounts if row.struck for amount in prices.amounts(row.amount)}
    shown = {amount.nanos for amount in prices.amounts(snapshot.text)} - struck
    largest = max(shown | {row.found.amount.nanos for row in entries}, default=0)
    for group in dict.fromkeys(row.group for row in entries):
        summed = _sum_of([row.found for row in entries if row.group == group], goods_nanos)
        is_part = labelled is None or labelled.nanos in {row.amount.nanos for row in summed[:-1]}
        if summed and summed[-1].amount.nanos == largest and is_part:
            return summed
    if labelled is not None:
        return rows
    due = {structured.order_total_nanos(snapshot), *page_data.totals(snapshot)}
    if largest in due and largest > goods_nanos and {largest, goods_nanos} <= shown:
        total = next(amount for amount in prices.amounts(snapshot.text) if amount.nanos == largest)
        goods = LabelledAmount("", AmountKind.GOODS, replace(total, nanos=goods_nanos))
        return [goods, LabelledAmount("", AmountKind.TOTAL, total)]
    return rows


def _sum_of(rows: Sequence[LabelledAmount], goods_nanos: int) -> list[LabelledAmount]:
    """Return the goods, the parts that are added to them and their sum, which is the last row; empty if it is none."""
    *parts, last = rows
    goods = next((row for row in parts if row.amount.nanos == goods_nanos), None)
    others = [row for row in parts if row.amount.nanos != goods_nanos][:_MAX_PARTS]
    for size in range(len(others), 0, -1):
        for chosen in combinations(others if goods is not None else [], size):
            signs = [-1 if row.kind is AmountKind.DISCOUNT else 1 for row in chosen]
            added = sum(sign * row.amount.nanos for sign, row in zip(signs, chosen, strict=True))
            if goods is not None and goods_nanos + added == last.amount.nanos:
                known = [replace(row, kind=AmountKind.PART) if row.kind is AmountKind.OTHER else row for row in chosen]
                return [replace(goods, kind=AmountKind.GOODS), *known, replace(last, kind=AmountKind.TOTAL)]
    return []


def order_amounts(rows: Sequence[LabelledAmount], total: PageAmount, goods_nanos: int) -> tuple[OrderAmount, ...]:
    """Return the amounts of an order.

    One without a known label is an item if it is the price of the goods. Where nothing has the label of a subtotal, but
    several have that of a total, such as "Cart total" and "Order total", those but the last are subtotals.
    """
    amounts: list[OrderAmount] = []
    totals = [row for row in rows if row.kind is AmountKind.TOTAL]
    final = next((row for row in reversed(totals) if row.amount == total), None)
    if final is None:
        amounts.append(OrderAmount(AmountRole.TOTAL, "", total.nanos))
    has_subtotal = any(row.kind is AmountKind.GOODS for row in rows)
    for row in rows:
        # The price of one unit, of the line and without taxes may be the same: the goods count once.
        is_item = (
            row.kind is AmountKind.OTHER
            and row.amount.nanos == goods_nanos
            and not any(amount.role is AmountRole.ITEM for amount in amounts)
        )
        role = AmountRole.ITEM if is_item else _ROLES.get(row.kind)
        if role is AmountRole.TOTAL and not has_subtotal and final is not None and row.label != final.label:
            role = AmountRole.SUBTOTAL
        if role is not None:
            label = "".join(char for char in row.label if char.isprintable())[:_MAX_LABEL_LENGTH]
            amounts.append(OrderAmount(role, label.strip(" :"), row.amount.nanos))
    return tuple(dict.fromkeys(amounts))[:_MAX_ROWS]


def disagreeing_totals(rows: Sequence[LabelledAmount], amounts: Sequence[OrderAmount]) -> list[LabelledAmount]:
    """Return the totals of a page that shows several, unless the largest is what the parts add up to."""
    totals = {row.amount.nanos: row for row in rows if row.kind is AmountKind.TOTAL}
    return [] if len(totals) < 2 or adds_up(amounts, max(totals)) else list(totals.values())


def describe(rows: Iterable[LabelledAmount]) -> str:
    """Return the amounts of a page, for a message."""
    found = dict.fromkeys(f"{' '.join(row.label.split())[:60]} {money.usd_string(row.amount.nanos)}" for row in rows)
    return f"Amounts seen: {'; '.join(list(found)[:_MAX_SEEN]) or 'none'}."


def _rows(snapshot: PageSnapshot) -> list[_Row]:
    read = [(row, found) for row in snapshot.amounts if not row.struck for found in _labelled(row)]
    counted = {(found.kind, found.amount.nanos) for row, found in read if not row.option}
    return [
        _Row(row.group, found)
        for row, found in read
        if not row.option
        or found.kind not in _KINDS_OF_OPTIONS
        or (row.option == "chosen" and (found.kind, found.amount.nanos) not in counted)
    ]


def _labelled(row: AmountRow) -> list[LabelledAmount]:
    plain = _SIGN.sub("", row.amount)
    found = prices.amounts(plain)
    if len(found) != 1:
        # A row in one element, such as "Total (incl. tax $0.00) $17.00".
        return prices.labelled_amounts(row.text)
    before = prices.words_of(row.text.partition(row.amount)[0])
    label = " ".join((before or prices.words_of(row.text.replace(row.amount, " ")) or _label_within(row)).split())
    # A long label begins with what the amount is: "Shipping: by post, free from $200.00".
    kind = prices.kind_of(label if len(label) <= prices.MAX_LABEL_LENGTH else label.partition(":")[0])
    if plain.strip() != row.amount.strip() and _SIGN.match(row.amount.strip()) and kind is AmountKind.OTHER:
        kind = AmountKind.DISCOUNT
    return [LabelledAmount(label, kind, found[0])]


def _label_within(row: AmountRow) -> str:
    """Return the label of an amount that is a text next to it, such as `<div><span>Subtotal</span>$12.00</div>`."""
    words = prices.words_of(row.amount)
    return words if row.amount.startswith(words.partition(" ")[0]) else ""
