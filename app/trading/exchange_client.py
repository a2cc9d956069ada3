"""Client of the exchange: rate budget, a cache for public data, its markets, and PERPDEX_ERROR for every failure.

The exchange limits the weight of all requests from one IP address. The budget is in the database, which all processes
share; it refills steadily, and each wallet has a share, so that one busy agent does not block the others.

The list of markets is from the exchange, as last stored or as bundled, in this order. Markets keep their numbers, so an
older list is correct for the markets that it contains.
"""

import difflib
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, time
from enum import StrEnum
from functools import partial
from typing import Any

import structlog
from sqlalchemy import JSON, BigInteger, Index, String, case, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.capacity.single_flight_cache import SingleFlightCache
from app.core import clock
from app.db.tables import UtcDateTime, delete_rows, insert_into, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput, PerpdexError
from app.extensions import Model
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Json, PerpdexQuery, PerpdexTopic, PerpMarket
from app.state import app_state

_log = structlog.get_logger(__name__)


class ExchangeBudget(Model):
    """A share of the exchange's rate limit: the time at which it is fully replenished, in milliseconds."""

    __tablename__ = "exchange_budgets"
    __table_args__ = (Index("ix_exchange_budgets_whole_at_ms", "whole_at_ms"),)

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    whole_at_ms: Mapped[int] = mapped_column(BigInteger)


class ExchangeMarkets(Model):
    """The last list of markets, for when the exchange is unavailable."""

    __tablename__ = "exchange_markets"

    exchange: Mapped[str] = mapped_column(String(20), primary_key=True)
    markets: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    read_at: Mapped[datetime] = mapped_column(UtcDateTime)


_MS_PER_SECOND = 1000
_EXPIRY_MS = 3_600_000
_BACKOFF_SECONDS = 10


@dataclass(frozen=True, slots=True)
class RateAllowance:
    """A token bucket: within any minute, at most `burst + 60000 / ms_per_weight` units can be acquired."""

    burst: int
    ms_per_weight: int


GLOBAL_ALLOWANCE = RateAllowance(burst=400, ms_per_weight=75)
"""The exchange allows 1200 a minute: a burst of 400 and 800 more."""
WALLET_ALLOWANCE = RateAllowance(burst=200, ms_per_weight=150)
_GLOBAL_NAME = "all"


def acquire(weight: int, *, wallet_id: str | None = None, now: datetime | None = None, is_bounded: bool = True) -> None:
    """Acquire weight from the budget and from a wallet's share, or from neither if one has too little.

    `is_bounded=False` acquires it in any case. Raises: PerpdexError, with when to retry.
    """
    of_wallet = [(wallet_id, WALLET_ALLOWANCE, "This wallet's share of the")] if wallet_id else []
    now_ms = _ms(now)
    with unit_of_work() as session:
        for name, allowance, subject in (*of_wallet, (_GLOBAL_NAME, GLOBAL_ALLOWANCE, "The")):
            cost_ms, burst_ms = weight * allowance.ms_per_weight, allowance.burst * allowance.ms_per_weight
            ceiling_ms = now_ms + burst_ms if is_bounded else None
            if not _spend(session, name, cost_ms, ceiling_ms=ceiling_ms, now_ms=now_ms):
                whole_at_ms = session.scalar(select(ExchangeBudget.whole_at_ms).where(ExchangeBudget.name == name))
                seconds = -(-((whole_at_ms or 0) + cost_ms - now_ms - burst_ms) // _MS_PER_SECOND)
                message = f"{subject} request budget for the exchange is used up"
                raise retry_later_error("rate_limited", message, retry_after_seconds=max(1, seconds))


def back_off() -> None:
    """Pause all requests for some seconds after a 429 of the exchange."""
    pause_ms = (GLOBAL_ALLOWANCE.burst * GLOBAL_ALLOWANCE.ms_per_weight) + _BACKOFF_SECONDS * _MS_PER_SECOND
    until_ms = _ms(None) + pause_ms
    is_sooner = ExchangeBudget.name == _GLOBAL_NAME, ExchangeBudget.whole_at_ms < until_ms
    with unit_of_work() as session:
        update_rows(session, ExchangeBudget, *is_sooner, whole_at_ms=until_ms)


def retry_later_error(reason: str, message: str, *, retry_after_seconds: int) -> PerpdexError:
    details = {"reason": reason, "retry_after_seconds": retry_after_seconds}
    text = f"{message}; try again in {retry_after_seconds} s."
    return PerpdexError(text, details=details, retry_after_seconds=retry_after_seconds)


def _spend(session: Session, name: str, cost_ms: int, *, ceiling_ms: int | None, now_ms: int) -> bool:
    """Move the time at which a budget is replenished unless it would exceed the ceiling; return whether it moved.

    A budget without a row is whole.
    """
    whole_at_ms = ExchangeBudget.whole_at_ms
    after = case((whole_at_ms > now_ms, whole_at_ms), else_=now_ms) + cost_ms
    new = insert_into(session, ExchangeBudget).values(name=name, whole_at_ms=now_ms + cost_ms)
    spend = new.on_conflict_do_update(
        index_elements=["name"], set_={"whole_at_ms": after}, where=None if ceiling_ms is None else after <= ceiling_ms
    )
    return session.scalar(spend.returning(ExchangeBudget.name)) is not None


def prune(now: datetime) -> None:
    """Delete budgets of wallets that have long been whole."""
    is_old = ExchangeBudget.whole_at_ms < _ms(now) - _EXPIRY_MS, ExchangeBudget.name != _GLOBAL_NAME
    with unit_of_work() as session:
        delete_rows(session, ExchangeBudget, *is_old)


def _ms(now: datetime | None) -> int:
    return int((now or clock.now()).timestamp() * _MS_PER_SECOND)


_MAX_CONCURRENT = 64
"""The maximum number of threads per process that wait for the exchange, so that others remain available."""
_TTL_SECONDS: Mapping[PerpdexTopic, int] = {
    PerpdexTopic.MARKETS: 300, PerpdexTopic.FUNDING: 10, PerpdexTopic.MIDS: 2, PerpdexTopic.BOOK: 2,
}  # fmt: skip
_MARKETS_RETRY_SECONDS = 10
_RETRY_SECONDS = 2
_MESSAGES: Mapping[str, str] = {
    "rate_limited": "The exchange's rate limit is exceeded",
    "not_sent": "The exchange cannot be reached",
    "no_answer": "The exchange cannot be reached or did not respond in time",
    "unexpected_answer": "The exchange returned an unexpected response",
    "exchange_failed": "The exchange failed to respond",
}


@dataclass(frozen=True, slots=True)
class ExchangeDocument:
    document: Json
    read_at: datetime


@dataclass(frozen=True, slots=True)
class ExchangeFeed:
    cache: SingleFlightCache = field(default_factory=SingleFlightCache)
    slots: threading.BoundedSemaphore = field(default_factory=partial(threading.BoundedSemaphore, _MAX_CONCURRENT))


def get_public(query: PerpdexQuery) -> ExchangeDocument:
    """Return public data, at most seconds old; a list of markets is minutes old, and stored. Raises: PerpdexError."""
    is_market_list = query.topic is PerpdexTopic.MARKETS

    def load() -> ExchangeDocument:
        document = ExchangeDocument(fetch(query, wallet_id=None), clock.now())
        if is_market_list:
            _try_store(document)
        return document

    found: ExchangeDocument = app_state().part(ExchangeFeed).cache.get(
        query, load, ttl_seconds=_TTL_SECONDS[query.topic],
        failure_ttl_seconds=_MARKETS_RETRY_SECONDS if is_market_list else _RETRY_SECONDS,
    )  # fmt: skip
    return found


def fetch(query: PerpdexQuery, *, wallet_id: str | None) -> Json:
    """Return current data: of the account of a wallet, or public data. Raises: PerpdexError."""
    state = app_state()
    perpdex, slots = state.ports.perpdex, state.part(ExchangeFeed).slots
    if not slots.acquire(blocking=False):
        raise retry_later_error("busy", "Too many requests are waiting for the exchange", retry_after_seconds=1)
    try:
        acquire(perpdex.query_weight(query), wallet_id=wallet_id)
        reply = perpdex.fetch(query)
    except Unreachable as error:
        if error.reason == "rate_limited":
            back_off()
        raise unavailable_error(error.reason) from None
    except Rejected as error:
        raise PerpdexError("The exchange refused the request.", details={"reason": error.reason}) from None
    finally:
        slots.release()
    if reply.surplus_weight:
        acquire(reply.surplus_weight, wallet_id=wallet_id, is_bounded=False)
    return reply.document


def unavailable_error(reason: str) -> PerpdexError:
    message = _MESSAGES.get(reason, _MESSAGES["exchange_failed"])
    return retry_later_error(reason, message, retry_after_seconds=10 if reason == "rate_limited" else 5)


_EXCHANGE = "perpdex"
MARKETS = PerpdexQuery(PerpdexTopic.MARKETS)
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


def load_markets() -> MarketList:
    """Return the markets, even while the exchange is unavailable. Raises: PerpdexError if no other list exists."""
    perpdex = app_state().ports.perpdex
    try:
        snapshot = get_public(MARKETS)
        markets = perpdex.parse_markets(snapshot.document)
        return MarketList(markets, MarketSource.EXCHANGE, clock.isoformat(snapshot.read_at))
    except PerpdexError:
        with read_only_unit() as session:
            if (row := session.get(ExchangeMarkets, _EXCHANGE)) is not None:
                stored = tuple(PerpMarket(**market) for market in row.markets)
                return MarketList(stored, MarketSource.STORED, clock.isoformat(row.read_at))
        if (bundled := perpdex.bundled_markets()) is None:
            raise
        day, markets = bundled
        return MarketList(markets, MarketSource.BUNDLED, clock.isoformat(datetime.combine(day, time(), UTC)))


def require_market(market_list: MarketList, symbol: str) -> PerpMarket:
    """Return a market. Raises: InvalidInput with similar symbols."""
    market = market_list.find(symbol)
    if market is not None:
        return market
    by_lower = {each.symbol.lower(): each.symbol for each in market_list.markets if not each.is_delisted}
    # The best match first: `ETH` for `ETH-PERP`, `ethusd` and `ETHH`.
    words = symbol.lower().translate(_SEPARATORS).split()
    whole = [word for word in words if word in by_lower]
    close = [each for word in words for each in difflib.get_close_matches(word, by_lower, n=_SUGGESTIONS)]
    suggestions = [by_lower[each] for each in dict.fromkeys(whole or close)][:_SUGGESTIONS]
    hint = f"did you mean {' or '.join(suggestions)}" if suggestions else "the action `markets` lists them all"
    problem = f"is not a market of the exchange; {hint}"
    details = {"fields": {"symbol": [problem]}, "near_matches": suggestions}
    raise InvalidInput(f"symbol {problem}{'?' if suggestions else '.'}", details=details)


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
