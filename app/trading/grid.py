"""The exchange's grid: prices of five significant figures, sizes of so many decimals. Pure and exact.

Source: the exchange's documentation, "Tick and lot size": a price has at most five significant figures and at most
six decimals less the market's size decimals; whole prices are always allowed.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, Inexact, InvalidOperation

_NUMBER = re.compile(r"[0-9]{1,60}(?:\.[0-9]{1,60})?", re.ASCII)
_LARGEST = Decimal(10**12)
_SIGNIFICANT = 5
_PRICE_DECIMALS = 6
_WIDE = Context(prec=200, traps=[InvalidOperation])
_EXACT = Context(prec=200, traps=[InvalidOperation, Inexact])


class GridError(ValueError):
    """The number fits no grid; the message is fit for the caller."""


def parse(text: str) -> Decimal:
    """Read a positive plain decimal such as `3000.5`: no sign, exponent or spaces. Raises: GridError."""
    if not _NUMBER.fullmatch(text):
        raise GridError('must be a plain decimal number such as "3000.5"')
    number = Decimal(text)
    if number == 0:
        raise GridError("must be greater than zero")
    if number > _LARGEST:
        raise GridError("is too large")
    return number


def price(asked: Decimal, *, size_decimals: int, is_buy: bool) -> Decimal:
    """Return the nearest price on the grid that is not worse for the caller: a buy's at most, a sell's at least.

    Raises: GridError when a buy's price is below the smallest.
    """
    finest = -max(0, _PRICE_DECIMALS - size_decimals)
    figures = min(0, asked.adjusted() - (_SIGNIFICANT - 1))
    rounding = ROUND_FLOOR if is_buy else ROUND_CEILING
    on_grid = asked.quantize(
        Decimal(1).scaleb(max(finest, figures)), rounding=rounding, context=_WIDE
    ).normalize(_WIDE)
    if on_grid == 0:
        raise GridError(f"is below the market's smallest price, {Decimal(1).scaleb(finest):f}")
    return on_grid


def size(asked: Decimal, *, size_decimals: int) -> Decimal:
    """Return the largest size on the grid that is not more than asked. Raises: GridError when that is none."""
    smallest = Decimal(1).scaleb(-size_decimals)
    on_grid = asked.quantize(smallest, rounding=ROUND_FLOOR, context=_WIDE).normalize(_WIDE)
    if on_grid == 0:
        raise GridError(f"is below the market's smallest size, {smallest:f}")
    return on_grid


def notional_nanos(price: Decimal, size: Decimal, *, nanos_per_usdc: int) -> int:
    """Return the dollar value of an order in nano-dollars, rounded up."""
    value = _EXACT.multiply(_EXACT.multiply(price, size), Decimal(nanos_per_usdc))
    return int(value.to_integral_value(rounding=ROUND_CEILING, context=_WIDE))
