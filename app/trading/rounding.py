"""Exact rounding to the exchange's grid of prices and sizes.

Source: the exchange's documentation, "Tick and lot size": a price has at most five significant figures and at most
six decimals less the market's size decimals; whole prices are always allowed.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal, Inexact, InvalidOperation

_NUMBER = re.compile(r"[0-9]{1,60}(?:\.[0-9]{1,60})?", re.ASCII)
_MAX_NUMBER = Decimal(10**12)
_SIGNIFICANT_FIGURES = 5
_PRICE_DECIMALS = 6
_WIDE_CONTEXT = Context(prec=200, traps=[InvalidOperation])
_EXACT_CONTEXT = Context(prec=200, traps=[InvalidOperation, Inexact])


class GridError(ValueError):
    """A number that cannot be rounded to the grid; the message is for the client."""


def parse(text: str) -> Decimal:
    """Parse a positive plain decimal such as `3000.5`: no sign, exponent or spaces. Raises: GridError."""
    if not _NUMBER.fullmatch(text):
        raise GridError('must be a plain decimal number such as "3000.5"')
    number = Decimal(text)
    if number == 0:
        raise GridError("must be greater than zero")
    if number > _MAX_NUMBER:
        raise GridError("is too large")
    return number


def round_price(requested: Decimal, *, size_decimals: int, is_buy: bool) -> Decimal:
    """Return the nearest price on the grid that is not worse for the client: rounded down for a buy, up for a sell.

    Raises: GridError if a buy's price is below the smallest.
    """
    finest = -max(0, _PRICE_DECIMALS - size_decimals)
    figures = min(0, requested.adjusted() - (_SIGNIFICANT_FIGURES - 1))
    rounding = ROUND_FLOOR if is_buy else ROUND_CEILING
    on_grid = requested.quantize(
        Decimal(1).scaleb(max(finest, figures)), rounding=rounding, context=_WIDE_CONTEXT
    ).normalize(_WIDE_CONTEXT)
    if on_grid == 0:
        raise GridError(f"is below the market's smallest price, {Decimal(1).scaleb(finest):f}")
    return on_grid


def round_size(requested: Decimal, *, size_decimals: int) -> Decimal:
    """Return the size rounded down to the grid. Raises: GridError if that is zero."""
    smallest = Decimal(1).scaleb(-size_decimals)
    on_grid = requested.quantize(smallest, rounding=ROUND_FLOOR, context=_WIDE_CONTEXT).normalize(_WIDE_CONTEXT)
    if on_grid == 0:
        raise GridError(f"is below the market's smallest size, {smallest:f}")
    return on_grid


def notional_nanos(price: Decimal, size: Decimal, *, nanos_per_usdc: int) -> int:
    """Return the dollar value of an order in nano-dollars, rounded up."""
    value = _EXACT_CONTEXT.multiply(_EXACT_CONTEXT.multiply(price, size), Decimal(nanos_per_usdc))
    return int(value.to_integral_value(rounding=ROUND_CEILING, context=_WIDE_CONTEXT))
