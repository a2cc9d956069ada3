"""Prices from CoinGecko's `simple/price`, with the age of the price, not of the response.

Source: docs.coingecko.com, "Coin Price by IDs" and "Authentication".
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from app.adapters.http_client import HttpClient
from app.adapters.prices.market import PriceNanos, prices_in
from app.core import clock
from app.core.chains import ETH, SOL, Token
from app.core.foreign import ForeignModel

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0
_MAX_AGE_SECONDS = 600
_CLOCK_SKEW_SECONDS = 60
_COINS = {ETH: "ethereum", SOL: "solana"}
_PRO_HOST = "//pro-api."


class _CoinGeckoPrice(ForeignModel):
    usd_nanos: PriceNanos = Field(alias="usd")
    made_at: int = Field(alias="last_updated_at")


class CoinGeckoPrices:
    """A price source for operators who have a key."""

    def __init__(self, base_url: str, *, api_key: str) -> None:
        """Store the API's base address and a key; paid keys have a separate host and header."""
        self._url = f"{base_url.rstrip('/')}/simple/price"
        self._headers = {"x-cg-pro-api-key" if _PRO_HOST in base_url else "x-cg-demo-api-key": api_key}
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS, headers=self._headers)

    def __repr__(self) -> str:
        return "CoinGeckoPrices()"

    def read(self) -> Mapping[Token, int]:
        """Return current prices in nano-dollars per token. Raises: Unreachable."""
        query = {
            "ids": ",".join(_COINS.values()),
            "vs_currencies": "usd",
            "include_last_updated_at": "true",
            "precision": "full",
        }
        response = self._http.get(self._url, query=query)
        return prices_in(response, _COINS, _recent_nanos, source=type(self).__name__)


def _recent_nanos(entry: object) -> int:
    """Return a price. Raises: ValueError for one that is old, or made in the future."""
    price = _CoinGeckoPrice.read(entry)
    if not -_CLOCK_SKEW_SECONDS <= int(clock.now().timestamp()) - price.made_at <= _MAX_AGE_SECONDS:
        raise ValueError("not a current price")
    return price.usd_nanos
