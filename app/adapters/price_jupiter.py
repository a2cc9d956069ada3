"""Prices from Jupiter's Price API v3, which needs no key: what the tokens trade for on Solana.

Source: Jupiter's documentation, "Price API V3"; without a key it answers one request in two seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import structlog

from app.adapters.http_client import HttpClient
from app.adapters.prices import nanos_from_json
from app.core.chains import ETH, SOL, Token
from app.ports.errors import Unreachable

_CONNECT_SECONDS = 2.0
_TOTAL_SECONDS = 5.0
_MINTS = {
    SOL: "So11111111111111111111111111111111111111112",
    # Ether as Wormhole carries it to Solana.
    ETH: "7vfCXTUXx5WJV5JADk17DUJ4ksgau7utNKj4b963voxs",
}

_log = structlog.get_logger(__name__)


class JupiterPrices:
    """The last source before the last price known."""

    def __init__(self, base_url: str) -> None:
        """Take the API's base."""
        self._url = f"{base_url.rstrip('/')}/price/v3"
        self._http = HttpClient(connect_seconds=_CONNECT_SECONDS, total_seconds=_TOTAL_SECONDS)

    def read(self) -> Mapping[Token, int]:
        """Return prices in nano-dollars per token. Raises: Unreachable."""
        answer = self._http.get(self._url, query={"ids": ",".join(_MINTS.values())})
        if answer.status != HTTPStatus.OK:
            raise Unreachable(f"http_{answer.status}")
        mints = answer.json()
        if not isinstance(mints, dict):
            raise Unreachable("unexpected_answer")
        prices = {}
        for token, mint in _MINTS.items():
            entry = mints.get(mint)
            nanos = nanos_from_json(entry.get("usdPrice")) if isinstance(entry, dict) else None
            if nanos is None:
                _log.warning("price_ignored", source="JupiterPrices", token=token.symbol)
            else:
                prices[token] = nanos
        return prices
