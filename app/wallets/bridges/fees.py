"""The maximum fee of a bridge: one rule for quotes and for refunds."""

from __future__ import annotations

from app.core.money import TokenAmount, nanos_from_usd
from app.state import app_state
from app.wallets.core import network_fees

_BPS_SCALE = 10_000


def is_fee_acceptable(fee_units: int, amount: TokenAmount) -> bool | None:
    """Return whether a fee is within a share of the amount plus the operator's cap on network fees.

    Reads a price from the network if needed; None if that is unknown.
    """
    settings = app_state().settings
    excess_units = fee_units - amount.units * settings.max_bridge_fee_bps // _BPS_SCALE
    if excess_units <= 0:
        return True
    excess_nanos = network_fees.usd_value_nanos(TokenAmount(excess_units, amount.token))
    return None if excess_nanos is None else excess_nanos <= nanos_from_usd(settings.max_network_fee_usd)


def is_sufficient_refund(refunded_units: int, amount: TokenAmount) -> bool | None:
    """Return whether a payment refunds the amount: all but an acceptable fee, and at least half.

    None if that depends on an unknown price.
    """
    if 2 * refunded_units < amount.units:
        return False
    return is_fee_acceptable(amount.units - refunded_units, amount)
