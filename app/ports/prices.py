"""What a token is worth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.core.chains import Token


@dataclass(frozen=True, slots=True)
class Market:
    """The lowest and the highest of fresh prices, in nano-dollars per whole token."""

    least_nanos: int
    most_nanos: int


class Prices(Protocol):
    """Prices in nano-dollars per whole token."""

    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price, the higher of two fresh ones, or None when none is known (USDC is always 1 USD).

        May ask the network; call it outside a unit of work. Never raises for an unreachable source.
        """
        ...

    def market(self, token: Token) -> Market | None:
        """Return what sources say that trade nothing themselves, None when none of them is known to say anything.

        For judging an exchange, whose own word on prices is worth nothing there. Else as `nanos_per_token`.
        """
        ...
