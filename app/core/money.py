"""Exact money: token amounts in base units and US dollars in nano-dollars (10^-9 USD), both integers.

Nothing here ever rounds silently: parsing refuses what does not fit, and the one place that must round
(a token's dollar value) rounds up, so that a limit is never passed by a fraction. What binary arithmetic has left
behind the ninth decimal of a dollar number is no part of it (`usd_as_meant`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, DecimalException, Inexact, InvalidOperation

from app.core.chains import Token

NANOS_PER_USD = 10**9

_AMOUNT = re.compile(r"[0-9]{1,60}(?:\.[0-9]{1,40})?", re.ASCII)
# The default context rounds at 28 digits without a word; this one refuses instead.
_EXACT = Context(prec=120, traps=[Inexact, InvalidOperation])
_COMPARING = Context(prec=120, rounding=ROUND_HALF_EVEN, traps=[InvalidOperation])
_ONE_NANO = Decimal("1E-9")
# A double has 53 bits. A sum of a few that were written in decimals differs in the last of them.
_NOISE_BITS = 48


class AmountError(ValueError):
    """The text is not an amount; the message is fit for the caller."""


@dataclass(frozen=True, slots=True)
class TokenAmount:
    """An amount of one token in its base units (wei, lamports, micro-USDC); never negative."""

    units: int
    token: Token

    def __post_init__(self) -> None:
        """Refuse a negative amount: directions are expressed by who pays whom."""
        if self.units < 0:
            msg = "a token amount is never negative"
            raise ValueError(msg)

    def __str__(self) -> str:
        """Write the amount as a plain decimal string without superfluous zeros, e.g. `0.5`."""
        return decimal_string(self.units, self.token.decimals)


def parse_amount(text: str, token: Token) -> TokenAmount:
    """Read a positive plain decimal such as `12.5`: no sign, exponent, spaces or surplus decimals.

    Raises: AmountError with a sentence for the caller.
    """
    if not _AMOUNT.fullmatch(text):
        msg = 'must be a plain decimal number such as "12.5"'
        raise AmountError(msg)
    whole, _, fraction = text.partition(".")
    if len(fraction) > token.decimals:
        msg = f"{token.symbol} has at most {token.decimals} decimals"
        raise AmountError(msg)
    units = int(whole) * 10**token.decimals + int(fraction.ljust(token.decimals, "0") or "0")
    if units == 0:
        msg = "must be greater than zero"
        raise AmountError(msg)
    if units >= 2**255:
        msg = "is larger than any balance can be"
        raise AmountError(msg)
    return TokenAmount(units, token)


def decimal_string(units: int, decimals: int) -> str:
    """Write `units` of 10^-decimals as a plain decimal string without superfluous zeros."""
    sign, digits = ("-", str(-units)) if units < 0 else ("", str(units))
    digits = digits.rjust(decimals + 1, "0")
    whole, fraction = (digits[:-decimals], digits[-decimals:].rstrip("0")) if decimals else (digits, "")
    return f"{sign}{whole}.{fraction}" if fraction else f"{sign}{whole}"


def value_nanos(amount: TokenAmount, nanos_per_token: int) -> int:
    """Return the dollar value of an amount at a price per whole token, rounded up to a nano-dollar."""
    scale: int = 10**amount.token.decimals
    return -(-amount.units * nanos_per_token // scale)


def nanos_from_usd(usd: Decimal) -> int:
    """Convert dollars to nano-dollars.

    Raises: AmountError when the number is not finite or is finer than a nano-dollar.
    """
    try:
        scaled = _EXACT.multiply(usd, Decimal(NANOS_PER_USD))
        # The integral value of infinity is infinity, which is no integer.
        return int(_EXACT.to_integral_exact(scaled))
    except (DecimalException, ValueError, OverflowError):
        msg = "must be a finite number with at most 9 decimals"
        raise AmountError(msg) from None


def usd_as_meant(usd: Decimal) -> Decimal:
    """Return the dollars that a finite number from 0 to 10^9 stands for, where binary arithmetic wrote it.

    0.1 + 0.2 comes as 0.30000000000000004: the number of nine decimals that it differs from by less than 2^-48 of
    itself. Any other number comes back as it is. Never zero for what is not: as a limit that would be none.
    """
    meant = _COMPARING.quantize(usd, _ONE_NANO)
    noise = _COMPARING.multiply(_COMPARING.abs(_COMPARING.subtract(usd, meant)), Decimal(2**_NOISE_BITS))
    return meant if meant and noise < usd else usd


def usd_from_nanos(nanos: int) -> Decimal:
    """Convert nano-dollars to dollars, exactly."""
    return _EXACT.divide(Decimal(nanos), Decimal(NANOS_PER_USD))
