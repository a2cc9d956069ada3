"""Which markets there are and how they are numbered: from the exchange, else as last read, else as shipped.

Markets keep their numbers, so an older list is right about those that it has.
"""

from __future__ import annotations

import difflib
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, time
from enum import StrEnum

import structlog
from sqlalchemy import update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from app.core import clock
from app.core.unit_of_work import reading, unit_of_work
from app.errors import InvalidInput, PerpdexError
from app.ports import provider
from app.ports.perpdex import Market, Question, Topic
from app.trading import feed
from app.trading.feed import Seen
from app.trading.models import ExchangeMarkets

_log = structlog.get_logger(__name__)
_EXCHANGE = "perpdex"
_SUGGESTIONS = 5
_SEPARATORS = str.maketrans("-/_:", "    ")


class Origin(StrEnum):
    """Where a list of markets is from."""

    EXCHANGE = "exchange"
    STORED = "stored"
    BUNDLED = "bundled"


@dataclass(frozen=True, slots=True)
class Catalog:
    """The markets, where the list is from, and of when it is."""

    markets: tuple[Market, ...]
    origin: Origin
    as_of: str

    def find(self, symbol: str) -> Market | None:
        """Return a market by its symbol; case matters only where two symbols differ by nothing else."""
        exact = next((market for market in self.markets if market.symbol == symbol), None)
        if exact is not None:
            return exact
        alike = [market for market in self.markets if market.symbol.lower() == symbol.lower()]
        return alike[0] if len(alike) == 1 else None


def live() -> Seen:
    """Return the exchange's own list of markets, at most minutes old. Raises: PerpdexError."""
    return feed.public(Question(Topic.MARKETS), then=_keep)


def catalog() -> Catalog:
    """Return the markets, whether the exchange answers or not.

    Raises: PerpdexError when it does not, and nothing is known of a network that numbers its markets otherwise.
    """
    perpdex = provider.current().perpdex
    try:
        seen = live()
        return Catalog(perpdex.markets_in(seen.document), Origin.EXCHANGE, clock.isoformat(seen.at))
    except PerpdexError:
        known = _stored() or _bundled()
        if known is None:
            raise
        return known


def require(catalog: Catalog, symbol: str) -> Market:
    """Return a market. Raises: InvalidInput with the symbols that come near."""
    market = catalog.find(symbol)
    if market is None:
        raise unknown(symbol, [each.symbol for each in catalog.markets if not each.is_delisted])
    return market


def unknown(symbol: str, known: list[str]) -> InvalidInput:
    """Make the failure for a symbol that is none, naming those that come near."""
    near = _near(symbol, known)
    hint = f"; did you mean {' or '.join(near)}?" if near else "; the action `markets` lists all"
    problem = "is not a market of the exchange" + hint
    failure = InvalidInput.field("symbol", problem.removesuffix("?"))
    return InvalidInput(
        f"symbol {problem}" + ("" if near else "."), details={**failure.details, "near_matches": near}
    )


def _near(symbol: str, known: list[str]) -> list[str]:
    """Return symbols that come near, the best first: `ETH` for `ETH-PERP`, `ethusd` and `ETHH`."""
    wanted = symbol.lower()
    words = set(wanted.translate(_SEPARATORS).split())
    by_lower = {each.lower(): each for each in known}
    whole = [each for each in by_lower if each in words]
    starts = [
        each for each in by_lower if len(each) > 1 and (wanted.startswith(each) or each.startswith(wanted))
    ]
    close = difflib.get_close_matches(wanted, by_lower, n=_SUGGESTIONS)
    starts.sort(key=lambda each: abs(len(each) - len(wanted)))
    return [by_lower[each] for each in dict.fromkeys([*whole, *close, *starts])][:_SUGGESTIONS]


def _keep(seen: Seen) -> None:
    try:
        _store(seen)
    except SQLAlchemyError:
        # The answer is there, and all who asked get it; the next one is kept.
        _log.exception("exchange_markets_not_stored")


def _store(seen: Seen) -> None:
    """Keep a list that was just read, for every process and after a restart."""
    markets = provider.current().perpdex.markets_in(seen.document)
    values = {"markets": [asdict(market) for market in markets], "read_at": seen.at}
    with unit_of_work() as session:
        kept = session.execute(
            update(ExchangeMarkets).where(ExchangeMarkets.exchange == _EXCHANGE).values(**values)
        )
        if kept.rowcount == 1:  # type: ignore[attr-defined]
            return
    try:
        with unit_of_work() as session:
            session.add(ExchangeMarkets(exchange=_EXCHANGE, **values))
    except IntegrityError:
        # Another process has just kept its own.
        return


def _stored() -> Catalog | None:
    with reading() as session:
        row = session.get(ExchangeMarkets, _EXCHANGE)
        if row is None:
            return None
        markets = tuple(Market(**market) for market in row.markets)
        return Catalog(markets, Origin.STORED, clock.isoformat(row.read_at))


def _bundled() -> Catalog | None:
    bundled = provider.current().perpdex.bundled_markets()
    if bundled is None:
        return None
    as_of = datetime.combine(bundled.day, time(), UTC)
    return Catalog(bundled.markets, Origin.BUNDLED, clock.isoformat(as_of))
