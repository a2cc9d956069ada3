"""Probe of a price source: current prices, by its own reader."""

from __future__ import annotations

from collections.abc import Collection

from app.adapters.prices.market import PriceSource
from app.core.chains import ETH, SOL, Token
from app.core.money import usd_string
from app.ports.probes import UnexpectedAnswer


def describe_prices(source: PriceSource, expected: Collection[Token] = (ETH, SOL)) -> str:
    """Read a source and describe its prices. Raises: UnexpectedAnswer if one is missing, PortError."""
    prices = source.read()
    missing = [token.symbol for token in expected if token not in prices]
    if missing:
        raise UnexpectedAnswer(f"no usable price of {', '.join(missing)}")
    return ", ".join(f"{token.symbol} {usd_string(prices[token])} USD" for token in expected)
