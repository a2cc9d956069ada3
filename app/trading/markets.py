"""The list of markets and their numbers: from the exchange, as last stored or as bundled, in this order.

Markets keep their numbers, so an older list is correct for the markets that it contains.
"""

import difflib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, time
from enum import StrEnum

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.core import clock
from app.db.tables import insert_into
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, PerpdexError
from app.ports.perpdex import Perpdex, PerpdexQuery, PerpdexTopic, PerpMarket
from app.state import app_state
from app.trading import exchange_client
from app.trading.exchange_client import ExchangeDocument, ExchangeMarkets

_log = structlog.get_logger(__name__)
_EXCHANGE = "perpdex"
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
    return exchange_client.get_public(PerpdexQuery(PerpdexTopic.MARKETS), on_read=_try_store)


def load_markets() -> MarketList:
    """Return the markets, even while the exchange is unavailable. Raises: PerpdexError if no other list exists."""
    perpdex = app_state().ports.perpdex
    try:
        snapshot = live_markets()
        markets = perpdex.parse_markets(snapshot.document)
        return MarketList(markets, MarketSource.EXCHANGE, clock.isoformat(snapshot.read_at))
    except PerpdexError:
        if (fallback := _stored_markets() or _bundled_markets(perpdex)) is None:
            raise
        return fallback


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
    by_lower = {each.lower(): each for each in known}
    words = symbol.lower().translate(_SEPARATORS).split()
    whole = [word for word in words if word in by_lower]
    close = [each for word in words for each in difflib.get_close_matches(word, by_lower, n=_SUGGESTIONS)]
    return [by_lower[each] for each in dict.fromkeys(whole or close)][:_SUGGESTIONS]


def _try_store(snapshot: ExchangeDocument) -> None:
    """Store a list for all processes and for the time after a restart."""
    markets = app_state().ports.perpdex.parse_markets(snapshot.document)
    values = {"markets": [asdict(market) for market in markets], "read_at": snapshot.read_at}
    try:
        with unit_of_work() as session:
            insert = insert_into(session, ExchangeMarkets).values(exchange=_EXCHANGE, **values)
            session.execute(insert.on_conflict_do_update(index_elements=["exchange"], set_=values))
    except SQLAlchemyError:
        # Clients still get the list; the next one will be stored.
        _log.exception("market_list_store_failed")


def _stored_markets() -> MarketList | None:
    with read_only_unit() as session:
        row = session.get(ExchangeMarkets, _EXCHANGE)
        if row is None:
            return None
        markets = tuple(PerpMarket(**market) for market in row.markets)
        return MarketList(markets, MarketSource.STORED, clock.isoformat(row.read_at))


def _bundled_markets(perpdex: Perpdex) -> MarketList | None:
    bundled = perpdex.bundled_markets()
    if bundled is None:
        return None
    as_of = datetime.combine(bundled.day, time(), UTC)
    return MarketList(bundled.markets, MarketSource.BUNDLED, clock.isoformat(as_of))
