"""Client of the exchange: rate budget, a cache for public data, and PERPDEX_ERROR for every failure.

The exchange limits the weight of all requests from one IP address. The limiter of requests counts it for all processes;
each wallet has a share, so that one busy agent does not block the others.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from app.capacity.single_flight_cache import SingleFlightCache
from app.core import clock
from app.errors import PerpdexError, RateLimited
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Json, PerpdexQuery, PerpdexTopic
from app.state import app_state

LIMIT = "1000 per minute"
"""The exchange allows 1200; what responses weigh beyond it is not counted."""
WALLET_LIMIT = "200 per 20 seconds"
_SCOPE = "perpdex"


def acquire(weight: int, *, wallet_id: str | None = None) -> None:
    """Count weight against a wallet's share and the limit of all. Raises: PerpdexError, with when to retry."""
    for subject, limit, name in _budgets(wallet_id):
        try:
            app_state().rate_limiter.spend(limit, _SCOPE, name, weight)
        except RateLimited as refusal:
            message = f"{subject} request budget for the exchange is used up"
            seconds = refusal.retry_after_seconds or 1
            raise retry_later_error("rate_limited", message, retry_after_seconds=seconds) from None


def charge_surplus(weight: int, *, wallet_id: str | None = None) -> None:
    """Count the weight of a response beyond that of its request, as far as the budgets have room."""
    for _subject, limit, name in _budgets(wallet_id):
        left = weight
        while left:
            with suppress(RateLimited):
                app_state().rate_limiter.spend(limit, _SCOPE, name, left)
                break
            left //= 2


def _budgets(wallet_id: str | None) -> list[tuple[str, str, str]]:
    of_wallet = [("This wallet's share of the", WALLET_LIMIT, wallet_id)] if wallet_id else []
    return [*of_wallet, ("The", LIMIT, "all")]


def retry_later_error(reason: str, message: str, *, retry_after_seconds: int) -> PerpdexError:
    details = {"reason": reason, "retry_after_seconds": retry_after_seconds}
    text = f"{message}; try again in {retry_after_seconds} s."
    return PerpdexError(text, details=details, retry_after_seconds=retry_after_seconds)


_MAX_CONCURRENT = 64
"""The maximum number of threads per process that wait for the exchange, so that others remain available."""
_TTL_SECONDS: Mapping[PerpdexTopic, int] = {
    PerpdexTopic.MARKETS: 300, PerpdexTopic.FUNDING: 10, PerpdexTopic.MIDS: 2, PerpdexTopic.BOOK: 2,
}  # fmt: skip
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


@dataclass(slots=True)
class ExchangeFeed:
    cache: SingleFlightCache = field(default_factory=SingleFlightCache)
    slots: threading.BoundedSemaphore = field(default_factory=partial(threading.BoundedSemaphore, _MAX_CONCURRENT))
    last_markets: ExchangeDocument | None = None
    """The last list of markets, for when the exchange is unavailable."""
    closed_until: float = 0.0
    """No request is sent before this time of the monotonic clock."""


def get_public(query: PerpdexQuery) -> ExchangeDocument:
    """Return public data, at most seconds old. Raises: PerpdexError."""
    is_market_list = query.topic is PerpdexTopic.MARKETS
    found: ExchangeDocument = app_state().part(ExchangeFeed).cache.get(
        query, lambda: ExchangeDocument(fetch(query, wallet_id=None), clock.now()),
        ttl_seconds=_TTL_SECONDS[query.topic],
        failure_ttl_seconds=_MARKETS_RETRY_SECONDS if is_market_list else _RETRY_SECONDS,
    )  # fmt: skip
    return found


def fetch(query: PerpdexQuery, *, wallet_id: str | None) -> Json:
    """Return current data: of the account of a wallet, or public data. Raises: PerpdexError."""
    state = app_state()
    perpdex, feed = state.ports.perpdex, state.part(ExchangeFeed)
    with _request_slot(feed.slots):
        if time.monotonic() < feed.closed_until:
            raise unavailable_error("rate_limited")
        acquire(perpdex.query_weight(query), wallet_id=wallet_id)
        try:
            reply = perpdex.fetch(query)
        except Unreachable as error:
            if error.reason == "rate_limited":
                feed.closed_until = time.monotonic() + _RATE_LIMIT_RETRY_SECONDS
            raise unavailable_error(error.reason) from None
        except Rejected as error:
            raise PerpdexError("The exchange refused the request.", details={"reason": error.reason}) from None
    if reply.surplus_weight:
        charge_surplus(reply.surplus_weight, wallet_id=wallet_id)
    return reply.document


@contextmanager
def _request_slot(slots: threading.BoundedSemaphore) -> Iterator[None]:
    if not slots.acquire(blocking=False):
        raise retry_later_error("busy", "Too many requests are waiting for the exchange", retry_after_seconds=1)
    try:
        yield
    finally:
        slots.release()


def unavailable_error(reason: str) -> PerpdexError:
    seconds = _RATE_LIMIT_RETRY_SECONDS if reason == "rate_limited" else _UNREACHABLE_RETRY_SECONDS
    message = _MESSAGES.get(reason, _MESSAGES["exchange_failed"])
    return retry_later_error(reason, message, retry_after_seconds=seconds)
