"""Values in dollars, and the cap on network fees for everything that this service signs, with or without a price."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.chains import ChainName, native
from app.core.money import TokenAmount, nanos_from_usd, value_nanos
from app.state import app_state

# Applied to the cap when no price is known: far above any price so far.
_FALLBACK_NANOS_PER_TOKEN: Mapping[str, int] = {"ETH": 20_000 * 10**9, "SOL": 2_000 * 10**9}


def usd_value_nanos(amount: TokenAmount) -> int | None:
    """Return the dollar value of an amount, None if no price is known. Reads the network."""
    price = app_state().ports.prices.nanos_per_token(amount.token)
    return None if price is None else value_nanos(amount, price)


def is_within_cap(chain: ChainName, units: int) -> bool:
    """Return whether a fee is within the operator's cap, at a high assumed price if none is known."""
    fee = TokenAmount(units, native(chain))
    fee_nanos = usd_value_nanos(fee)
    if fee_nanos is None:
        fee_nanos = value_nanos(fee, _FALLBACK_NANOS_PER_TOKEN[fee.token.symbol])
    return fee_nanos <= nanos_from_usd(app_state().settings.max_network_fee_usd)
