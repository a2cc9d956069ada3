"""Client of the exchange: rate budget, a cache for public data, and PERPDEX_ERROR for every failure.

The exchange limits the weight of all requests from one IP address. The budget is in the database, which all processes
share; it refills steadily, and each wallet has a share, so that one busy agent does not block the others.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import JSON, BigInteger, Index, String, case, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.capacity.single_flight_cache import SingleFlightCache
from app.core import clock
from app.db.tables import UtcDateTime, delete_rows, insert_into, update_rows
from app.db.unit_of_work import unit_of_work
from app.errors import PerpdexError
from app.extensions import Model
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Json, PerpdexQuery, PerpdexTopic
from app.state import app_state


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


def get_public(query: PerpdexQuery, *, on_read: Callable[[ExchangeDocument], None] | None = None) -> ExchangeDocument:
    """Return public data, at most seconds old; `on_read` gets what was read anew. Raises: PerpdexError."""

    def load() -> ExchangeDocument:
        document = ExchangeDocument(fetch(query, wallet_id=None), clock.now())
        if on_read is not None:
            on_read(document)
        return document

    is_market_list = query.topic is PerpdexTopic.MARKETS
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
