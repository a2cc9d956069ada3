"""What a token is worth."""

from __future__ import annotations

from typing import Protocol

from app.core.chains import Token


class Prices(Protocol):
    """Prices in nano-dollars per whole token."""

    def nanos_per_token(self, token: Token) -> int | None:
        """Return the price, the higher of two fresh ones, or None when none is known (USDC is always 1 USD).

        May ask the network; call it outside a unit of work. Never raises for an unreachable source.
        """
        ...

    def least_nanos_per_token(self, token: Token) -> int | None:
        """Return the lower of two fresh prices, for what a wallet gets; else as `nanos_per_token`."""
        ...
