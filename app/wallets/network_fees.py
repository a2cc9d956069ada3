"""What a network fee may cost at most: one rule for everything that this service signs, also without prices."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.chains import ChainName, native
from app.core.money import TokenAmount, nanos_from_usd, value_nanos
from app.ports import provider

# Where no price is known the operator's fee cap still has to hold: these are far above any price yet seen.
_CAUTIOUS_NANOS_PER_TOKEN: Mapping[str, int] = {"ETH": 20_000 * 10**9, "SOL": 2_000 * 10**9}


def fee_nanos(chain: ChainName, units: int) -> int | None:
    """Return the dollar value of a fee in the chain's own base units; None while no price is known."""
    token = native(chain)
    price = provider.current().prices.nanos_per_token(token)
    return None if price is None else value_nanos(TokenAmount(units, token), price)


def is_within_cap(chain: ChainName, units: int) -> bool:
    """Tell whether the operator lets a fee be paid, by a cautious price where none is known."""
    known = fee_nanos(chain, units)
    if known is None:
        token = native(chain)
        known = value_nanos(TokenAmount(units, token), _CAUTIOUS_NANOS_PER_TOKEN[token.symbol])
    return known <= nanos_from_usd(provider.settings().max_network_fee_usd)
