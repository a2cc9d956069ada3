"""What a swap must bring at least, and what it can lose at most. Pure rules, exact integers."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.chains import Token
from app.core.money import TokenAmount, value_nanos
from app.ports.errors import Rejected

_WHOLE_BPS = 10_000


@dataclass(frozen=True, slots=True)
class Prices:
    """What both tokens are worth, in nano-dollars per whole token."""

    given_nanos: int
    wanted_nanos: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least output, and the most that can be lost: what is given less the least that comes back."""

    minimum_units: int
    loss_nanos: int


def bound(
    given: TokenAmount,
    wanted: Token,
    prices: Prices,
    *,
    quoted_units: int,
    slippage_bps: int,
    deviation_bps: int,
) -> Bounds:
    """Return `max(quote less slippage, market's value less deviation)`, rounded against the exchange.

    Raises: Rejected("price_deviation") when the quote itself is below the market's bound,
    Rejected("amount_too_small") when nothing could come back.
    """
    fair_units = (
        given.units
        * prices.given_nanos
        * 10**wanted.decimals
        // (prices.wanted_nanos * 10**given.token.decimals)
    )
    by_market = _less(fair_units, deviation_bps)
    minimum_units = max(_less(quoted_units, slippage_bps), by_market)
    if quoted_units == 0 or minimum_units == 0:
        raise Rejected("amount_too_small")
    if quoted_units < by_market:
        raise Rejected(
            "price_deviation",
            details={
                "quoted": str(TokenAmount(quoted_units, wanted)),
                "required": str(TokenAmount(by_market, wanted)),
            },
        )
    comes_back_nanos = minimum_units * prices.wanted_nanos // 10**wanted.decimals
    return Bounds(minimum_units, max(value_nanos(given, prices.given_nanos) - comes_back_nanos, 0))


def _less(units: int, bps: int) -> int:
    return -(-units * (_WHOLE_BPS - bps) // _WHOLE_BPS)
