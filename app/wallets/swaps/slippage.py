"""The minimum output of a swap and its maximum loss, in exact integers."""

from __future__ import annotations

from app.core.chains import Token
from app.core.money import TokenAmount, value_nanos
from app.ports.errors import Rejected

_BPS_SCALE = 10_000


def compute_bounds(
    input_amount: TokenAmount,
    output_token: Token,
    *,
    input_price_nanos: int,
    output_price_nanos: int,
    quoted_units: int,
    slippage_bps: int,
    deviation_bps: int,
) -> tuple[TokenAmount, int]:
    """Return the minimum output and the loss that it allows, in nano-dollars.

    The minimum is `max(quote less slippage, market value less deviation)`, rounded up, and the loss the value of the
    input less that of the minimum. Prices are nano-dollars per whole token.

    Raises: Rejected("price_deviation") if the quote itself is below the market bound, Rejected("amount_too_small") if
    the output could be 0.
    """
    fair_units = (
        input_amount.units
        * input_price_nanos
        * 10**output_token.decimals
        // (output_price_nanos * 10**input_amount.token.decimals)
    )
    market_minimum_units = _reduce_by_bps(fair_units, deviation_bps)
    minimum_units = max(_reduce_by_bps(quoted_units, slippage_bps), market_minimum_units)
    if quoted_units == 0 or minimum_units == 0:
        raise Rejected("amount_too_small")
    if quoted_units < market_minimum_units:
        raise Rejected(
            "price_deviation",
            details={
                "quoted": str(TokenAmount(quoted_units, output_token)),
                "required": str(TokenAmount(market_minimum_units, output_token)),
            },
        )
    minimum_output_nanos = minimum_units * output_price_nanos // 10**output_token.decimals
    loss_nanos = max(value_nanos(input_amount, input_price_nanos) - minimum_output_nanos, 0)
    return TokenAmount(minimum_units, output_token), loss_nanos


def _reduce_by_bps(units: int, bps: int) -> int:
    return -(-units * (_BPS_SCALE - bps) // _BPS_SCALE)
