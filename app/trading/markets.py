"""The list of markets and their numbers: from the exchange, as last read or as bundled, in this order.

Markets keep their numbers, so an older list is correct for the markets that it contains.
"""

import difflib
from dataclasses import dataclass
from datetime import UTC, datetime, time
from enum import StrEnum

from app.core import clock
from app.errors import InvalidInput, PerpdexError
from app.ports.perpdex import Perpdex, PerpdexQuery, PerpdexTopic, PerpMarket
from app.state import app_state
from app.trading import exchange_client
from app.trading.exchange_client import ExchangeDocument, ExchangeFeed

_SUGGESTIONS = 5
_SEPARATORS = str.maketrans("-/_:", "    ")


class MarketSource(StrEnum):
    EXCHANGE = "exchange"
    STORED = "stored"
    BUNDLED = "bundled"


@dataclass(frozen=True, slots=True)
class MarketList:
    markets: tuple[PerpMarket, ...]
    source: MarketSource
    as_of: str

    def find(self, symbol: str) -> PerpMarket | None:
        """Return a market by symbol; case only matters if symbols differ in nothing else."""
        exact = next((market for market in self.markets if market.symbol == symbol), None)
        if exact is not None:
            return exact
        case_insensitive = [market for market in self.markets if market.symbol.lower() == symbol.lower()]
        return case_insensitive[0] if len(case_insensitive) == 1 else None


def live_markets() -> ExchangeDocument:
    """Return the exchange's list of markets, at most minutes old. Raises: PerpdexError."""
    feed, found = app_state().part(ExchangeFeed), exchange_client.get_public(PerpdexQuery(PerpdexTopic.MARKETS))
    feed.last_markets = found
    return found


def load_markets() -> MarketList:
    """Return the markets, even while the exchange is unavailable. Raises: PerpdexError if no other list exists."""
    perpdex = app_state().ports.perpdex
    try:
        return _listed(perpdex, live_markets(), MarketSource.EXCHANGE)
    except PerpdexError:
        if (last := app_state().part(ExchangeFeed).last_markets) is not None:
            return _listed(perpdex, last, MarketSource.STORED)
        bundled = perpdex.bundled_markets()
        if bundled is None:
            raise
        as_of = datetime.combine(bundled.day, time(), UTC)
        return MarketList(bundled.markets, MarketSource.BUNDLED, clock.isoformat(as_of))


def _listed(perpdex: Perpdex, read: ExchangeDocument, source: MarketSource) -> MarketList:
    return MarketList(perpdex.parse_markets(read.document), source, clock.isoformat(read.read_at))


def require_market(market_list: MarketList, symbol: str) -> PerpMarket:
    """Return a market. Raises: InvalidInput with similar symbols."""
    market = market_list.find(symbol)
    if market is not None:
        return market
    suggestions = _suggest_symbols(symbol, [each.symbol for each in market_list.markets if not each.is_delisted])
    hint = f"did you mean {' or '.join(suggestions)}" if suggestions else "the action `markets` lists them all"
    problem = f"is not a market of the exchange; {hint}"
    details = {"fields": {"symbol": [problem]}, "near_matches": suggestions}
    raise InvalidInput(f"symbol {problem}{'?' if suggestions else '.'}", details=details)


def _suggest_symbols(symbol: str, known: list[str]) -> list[str]:
    """Return similar symbols, the best match first: `ETH` for `ETH-PERP`, `ethusd` and `ETHH`."""
    lowered = symbol.lower()
    words = set(lowered.translate(_SEPARATORS).split())
    by_lower = {each.lower(): each for each in known}
    whole = [each for each in by_lower if each in words]
    close = difflib.get_close_matches(lowered, by_lower, n=_SUGGESTIONS)
    return [by_lower[each] for each in dict.fromkeys([*whole, *close])][:_SUGGESTIONS]
