"""Exact money: token amounts in base units and US dollars in nano-dollars (10^-9 USD), both integers.

Nothing rounds silently: parsing refuses surplus decimals, and the one place that must round (a token's dollar value)
rounds up, so that a limit is never exceeded by a fraction. Float noise beyond the ninth decimal of a dollar number is
removed (`usd_without_float_noise`).
"""

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, DecimalException, Inexact, InvalidOperation

from app.core.chains import Token

NANOS_PER_USD = 10**9

_AMOUNT = re.compile(r"[0-9]{1,60}(?:\.[0-9]{1,40})?", re.ASCII)
# The default context rounds silently at 28 digits; this one raises.
_EXACT_CONTEXT = Context(prec=120, traps=[Inexact, InvalidOperation])
_COMPARISON_CONTEXT = Context(prec=120, rounding=ROUND_HALF_EVEN, traps=[InvalidOperation])
# A double has 53 bits. A sum of a few decimal numbers differs only in the last of them.
_SIGNIFICANT_BITS = 48


class AmountError(ValueError):
    """The text is not an amount; the message may be shown to the client."""


@dataclass(frozen=True, slots=True)
class TokenAmount:
    """An amount of one token in its base units (wei, lamports, micro-USDC); never negative."""

    units: int
    token: Token

    def __post_init__(self) -> None:
        if self.units < 0:
            raise ValueError("a token amount is never negative")

    def __str__(self) -> str:
        return decimal_string(self.units, self.token.decimals)


def parse_amount(text: str, token: Token) -> TokenAmount:
    """Read a positive decimal such as `12.5`: no sign, exponent, spaces or surplus decimals. Raises: AmountError."""
    if not _AMOUNT.fullmatch(text):
        raise AmountError('must be a plain decimal number such as "12.5"')
    whole, _, fraction = text.partition(".")
    if len(fraction) > token.decimals:
        raise AmountError(f"{token.symbol} has at most {token.decimals} decimals")
    units = int(whole) * 10**token.decimals + int(fraction.ljust(token.decimals, "0") or "0")
    if units == 0:
        raise AmountError("must be greater than zero")
    if units >= 2**255:
        raise AmountError("is larger than any balance can be")
    return TokenAmount(units, token)


def decimal_string(units: int, decimals: int) -> str:
    """Write `units` of 10^-decimals as a plain decimal string without superfluous zeros."""
    sign, digits = ("-", str(-units)) if units < 0 else ("", str(units))
    digits = digits.rjust(decimals + 1, "0")
    whole, fraction = (digits[:-decimals], digits[-decimals:].rstrip("0")) if decimals else (digits, "")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def usd_string(nanos: int) -> str:
    return decimal_string(nanos, 9)


def value_nanos(amount: TokenAmount, nanos_per_token: int) -> int:
    """Return the dollar value of an amount at a price per whole token, rounded up to a nano-dollar."""
    scale: int = 10**amount.token.decimals
    return -(-amount.units * nanos_per_token // scale)


def nanos_from_usd(usd: Decimal) -> int:
    """Convert dollars. Raises: AmountError when the number is not finite or is finer than a nano-dollar."""
    try:
        scaled = _EXACT_CONTEXT.multiply(usd, Decimal(NANOS_PER_USD))
        # Infinity is its own integral value, and raises OverflowError.
        return int(_EXACT_CONTEXT.to_integral_exact(scaled))
    except (DecimalException, ValueError, OverflowError):
        raise AmountError("must be a finite number with at most 9 decimals") from None


def usd_without_float_noise(usd: Decimal) -> Decimal:
    """Remove float noise from a finite number of dollars from 0 to 10^9.

    A number such as 0.30000000000000004 (0.1 + 0.2), which differs from a number of nine decimals by less than 2^-48 of
    itself, becomes that number; any other is returned unchanged. A positive number never becomes zero, which as a limit
    means unlimited.
    """
    rounded = _COMPARISON_CONTEXT.quantize(usd, Decimal("1E-9"))
    tolerance = _COMPARISON_CONTEXT.multiply(
        _COMPARISON_CONTEXT.abs(_COMPARISON_CONTEXT.subtract(usd, rounded)), Decimal(2**_SIGNIFICANT_BITS)
    )
    return rounded if rounded and tolerance < usd else usd


def usd_from_nanos(nanos: int) -> Decimal:
    return _EXACT_CONTEXT.divide(Decimal(nanos), Decimal(NANOS_PER_USD))
