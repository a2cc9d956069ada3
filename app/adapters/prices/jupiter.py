"""Prices from Jupiter's Price API v3: what the tokens trade for on Solana.

Source: Jupiter's documentation, "Price API V3"; its limit of requests is that of swaps, too.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.adapters.prices.market import PriceNanos, prices_in
from app.adapters.rate_limited_http import KEYLESS, RateLimitedClient, ServiceAccess
from app.adapters.swaps.jupiter.api import KEY_HEADER, SERVICE
from app.core.chains import ETH, SOL, Token
from app.core.foreign import ForeignModel

_TOTAL_SECONDS = 5.0
_WAIT_SECONDS = 2.0
"""All readers of prices wait for the one that reads them."""
_MINTS = {
    SOL: "So11111111111111111111111111111111111111112",
    # Ether on Solana, bridged by Wormhole.
    ETH: "7vfCXTUXx5WJV5JADk17DUJ4ksgau7utNKj4b963voxs",
}


class _JupiterPrice(ForeignModel):
    usd_price: PriceNanos


class JupiterPrices:
    """The last source before the last known price."""

    def __init__(self, base_url: str, access: ServiceAccess = KEYLESS) -> None:
        self._url = f"{base_url.rstrip('/')}/price/v3"
        self._http = RateLimitedClient(
            SERVICE, access, KEY_HEADER, total_seconds=_TOTAL_SECONDS, wait_seconds=_WAIT_SECONDS
        )

    def read(self) -> Mapping[Token, int]:
        """Return prices in nano-dollars per token. Raises: Unreachable."""
        response = self._http.get(self._url, query={"ids": ",".join(_MINTS.values())})
        return prices_in(
            response, _MINTS, lambda entry: _JupiterPrice.read(entry).usd_price, source=type(self).__name__
        )
