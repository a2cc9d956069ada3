"""Token prices."""

from dataclasses import dataclass
from typing import Protocol

from app.core.chains import Token


@dataclass(frozen=True, slots=True)
class PriceRange:
    """The lowest and the highest of current prices, in nano-dollars per whole token."""

    min_nanos: int
    max_nanos: int


class PriceFeed(Protocol):
    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price, the higher of two current ones, or None when none is known (USDC is always 1 USD).

        May use the network: call it outside a unit of work. Never raises for an unreachable source.
        """

    def independent_range(self, token: Token) -> PriceRange | None:
        """Return prices of sources that do not trade, to check an exchange by; else as `nanos_per_token`."""
