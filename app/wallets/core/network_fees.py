"""Values in dollars, and the cap on network fees for everything that this service signs, with or without a price."""

from collections.abc import Mapping

from app.core.chains import ChainName, native
from app.core.money import TokenAmount, nanos_from_usd, usd_string, value_nanos
from app.ports.errors import Rejected
from app.state import app_state

# Applied to the cap when no price is known: far above any price so far.
_FALLBACK_NANOS_PER_TOKEN: Mapping[str, int] = {"ETH": 20_000 * 10**9, "SOL": 2_000 * 10**9}


def usd_value_nanos(amount: TokenAmount) -> int | None:
    """Return the dollar value of an amount, None if no price is known; 0 for a foreign token. Reads the network."""
    if amount.token.contract is not None:
        return 0
    price = app_state().ports.prices.nanos_per_token(amount.token)
    return None if price is None else value_nanos(amount, price)


def assert_acceptable(chain: ChainName, units: int, maximum_nanos: int | None = None) -> None:
    """Check a fee against the operator's cap and a request's maximum. Raises: Rejected, as `assert_below` does."""
    fee_nanos = nanos(chain, units)
    if fee_nanos > nanos_from_usd(app_state().settings.max_network_fee_usd):
        raise Rejected("network_fee_too_high")
    assert_below(fee_nanos, maximum_nanos)


def assert_below(fee_nanos: int, maximum_nanos: int | None) -> None:
    """Check a fee against the maximum of a request, if it has one. Raises: Rejected("network_fee_above_maximum")."""
    if maximum_nanos is not None and fee_nanos > maximum_nanos:
        details = {"network_fee_usd": usd_string(fee_nanos), "max_network_fee_usd": usd_string(maximum_nanos)}
        raise Rejected("network_fee_above_maximum", details=details)


def nanos(chain: ChainName, units: int) -> int:
    """Return the dollar value of a fee, at a high assumed price if none is known. Reads the network."""
    fee = TokenAmount(units, native(chain))
    known = usd_value_nanos(fee)
    return value_nanos(fee, _FALLBACK_NANOS_PER_TOKEN[fee.token.symbol]) if known is None else known
