"""Prices from CoinGecko's `simple/price`, believed by the time of their making, not of our asking.

Source: docs.coingecko.com, "Coin Price by IDs" and "Authentication".
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import structlog

from app.adapters.http_client import HttpClient
from app.adapters.prices import nanos_from_json
from app.core import clock
from app.core.chains import ETH, SOL, Token
from app.ports.errors import Unreachable

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0
_MAX_AGE_SECONDS = 600
_CLOCK_SKEW_SECONDS = 60
_COINS = {ETH: "ethereum", SOL: "solana"}
_PRO_HOST = "//pro-api."

_log = structlog.get_logger(__name__)


class CoinGeckoPrices:
    """The price provider, for operators who have a key."""

    def __init__(self, base_url: str, *, api_key: str) -> None:
        """Take the API's base and a key; keys of paying customers have a host and a header of their own."""
        self._url = f"{base_url.rstrip('/')}/simple/price"
        self._headers = {"x-cg-pro-api-key" if _PRO_HOST in base_url else "x-cg-demo-api-key": api_key}
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def __repr__(self) -> str:
        """Show no key."""
        return "CoinGeckoPrices()"

    def read(self) -> Mapping[Token, int]:
        """Return fresh prices in nano-dollars per token. Raises: Unreachable."""
        query = {
            "ids": ",".join(_COINS.values()),
            "vs_currencies": "usd",
            "include_last_updated_at": "true",
            "precision": "full",
        }
        answer = self._http.get(self._url, query=query, headers=self._headers)
        if answer.status != HTTPStatus.OK:
            raise Unreachable(f"http_{answer.status}")
        coins = answer.json()
        if not isinstance(coins, dict):
            raise Unreachable("unexpected_answer")
        prices = {}
        for token, coin in _COINS.items():
            nanos = _fresh_nanos(coins.get(coin))
            if nanos is None:
                _log.warning("price_ignored", source="CoinGeckoPrices", token=token.symbol)
            else:
                prices[token] = nanos
        return prices


def _fresh_nanos(entry: object) -> int | None:
    if not isinstance(entry, dict):
        return None
    made_at = entry.get("last_updated_at")
    if type(made_at) is not int:
        return None
    age = int(clock.now().timestamp()) - made_at
    return nanos_from_json(entry.get("usd")) if -_CLOCK_SKEW_SECONDS <= age <= _MAX_AGE_SECONDS else None
