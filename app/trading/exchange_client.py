"""Client of the exchange: rate budget, a cache for public data, and PERPDEX_ERROR for every failure."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from app.capacity.single_flight_cache import SingleFlightCache
from app.core import clock
from app.errors import PerpdexError
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Json, PerpdexQuery, PerpdexTopic
from app.state import app_state
from app.trading import rate_budget

_MAX_CONCURRENT_REQUESTS = 64
"""The maximum number of threads per process that wait for the exchange, so that others remain available."""
_TTL_SECONDS: Mapping[PerpdexTopic, int] = {
    PerpdexTopic.MARKETS: 300,
    PerpdexTopic.FUNDING: 10,
    PerpdexTopic.MIDS: 2,
    PerpdexTopic.BOOK: 2,
}
_MARKETS_RETRY_SECONDS = 10
_RETRY_SECONDS = 2
_UNREACHABLE_RETRY_SECONDS = 5
_RATE_LIMIT_RETRY_SECONDS = 10
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
    """The cache and the request slots of one process."""

    cache: SingleFlightCache = field(default_factory=SingleFlightCache)
    slots: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_MAX_CONCURRENT_REQUESTS)
    )


def get_public(query: PerpdexQuery, *, on_read: Callable[[ExchangeDocument], None] | None = None) -> ExchangeDocument:
    """Return public data that is at most seconds old; call `on_read` after reading it anew.

    Raises: PerpdexError.
    """

    def load() -> ExchangeDocument:
        document = ExchangeDocument(fetch(query, wallet_id=None), clock.now())
        if on_read is not None:
            on_read(document)
        return document

    is_market_list = query.topic is PerpdexTopic.MARKETS
    feed = app_state().part(ExchangeFeed)
    found: ExchangeDocument = feed.cache.get(
        query,
        load,
        ttl_seconds=_TTL_SECONDS[query.topic],
        failure_ttl_seconds=_MARKETS_RETRY_SECONDS if is_market_list else _RETRY_SECONDS,
    )
    return found


def fetch(query: PerpdexQuery, *, wallet_id: str | None) -> Json:
    """Return current data: of the account of a wallet, or public data. Raises: PerpdexError."""
    state = app_state()
    perpdex = state.ports.perpdex
    with _request_slot(state.part(ExchangeFeed).slots):
        rate_budget.acquire(perpdex.query_weight(query), wallet_id=wallet_id)
        try:
            reply = perpdex.fetch(query)
        except Unreachable as error:
            if error.reason == "rate_limited":
                rate_budget.back_off()
            raise unavailable_error(error.reason) from None
        except Rejected as error:
            raise PerpdexError("The exchange refused the request.", details={"reason": error.reason}) from None
    if reply.surplus_weight:
        rate_budget.charge_surplus(reply.surplus_weight, wallet_id=wallet_id)
    return reply.document


@contextmanager
def _request_slot(slots: threading.BoundedSemaphore) -> Iterator[None]:
    if not slots.acquire(blocking=False):
        raise rate_budget.retry_later_error(
            "busy", "Too many requests are waiting for the exchange", retry_after_seconds=1
        )
    try:
        yield
    finally:
        slots.release()


def unavailable_error(reason: str) -> PerpdexError:
    """Return the error for a failed request, with the time of a retry."""
    is_limit = reason == "rate_limited"
    return rate_budget.retry_later_error(
        reason,
        _MESSAGES.get(reason, _MESSAGES["exchange_failed"]),
        retry_after_seconds=_RATE_LIMIT_RETRY_SECONDS if is_limit else _UNREACHABLE_RETRY_SECONDS,
    )
