"""Asking the exchange: within the budget, sharing what is public, and failing with PERPDEX_ERROR and nothing else."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime

from flask import current_app

from app.core import clock
from app.errors import PerpdexError
from app.ports import provider
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Json, Question, Topic
from app.trading import budget
from app.trading.cache import Cache

_MAX_AT_ONCE = 64
"""Threads of a process that may wait for the exchange at one time; the others are needed for all else."""
_FRESH_SECONDS: Mapping[Topic, int] = {
    Topic.MARKETS: 300,
    Topic.FUNDING: 10,
    Topic.MIDS: 2,
    Topic.BOOK: 2,
}
_MARKETS_RETRY_SECONDS = 10
_RETRY_SECONDS = 2
_UNREACHABLE_RETRY_SECONDS = 5
_RATE_LIMIT_RETRY_SECONDS = 10
_SENTENCES: Mapping[str, str] = {
    "rate_limited": "The exchange is rate limited: it was asked too much",
    "not_sent": "The exchange cannot be reached",
    "no_answer": "The exchange cannot be reached or does not answer in time",
    "unexpected_answer": "The exchange answered with something that it does not promise",
    "exchange_failed": "The exchange failed to answer",
}


@dataclass(frozen=True, slots=True)
class Seen:
    """A document and when it was read."""

    document: Json
    at: datetime


@dataclass(frozen=True, slots=True)
class _Feed:
    cache: Cache = field(default_factory=Cache)
    places: threading.BoundedSemaphore = field(
        default_factory=lambda: threading.BoundedSemaphore(_MAX_AT_ONCE)
    )


def public(question: Question, *, then: Callable[[Seen], None] | None = None) -> Seen:
    """Return what anybody may see, at most seconds old; `then` is told of what was just read.

    Raises: PerpdexError.
    """

    def ask() -> Seen:
        seen = Seen(_ask(question, wallet_id=None), clock.now())
        if then is not None:
            then(seen)
        return seen

    is_of_markets = question.topic is Topic.MARKETS
    found: Seen = _feed().cache.get(
        question,
        ask,
        fresh_seconds=_FRESH_SECONDS[question.topic],
        retry_seconds=_MARKETS_RETRY_SECONDS if is_of_markets else _RETRY_SECONDS,
    )
    return found


def private(question: Question, *, wallet_id: str) -> Json:
    """Return what concerns one account, as it is now. Raises: PerpdexError."""
    return _ask(question, wallet_id=wallet_id)


def _ask(question: Question, *, wallet_id: str | None) -> Json:
    perpdex = provider.current().perpdex
    with _place():
        budget.take(perpdex.weight_of(question), wallet_id=wallet_id)
        try:
            reply = perpdex.ask(question)
        except Unreachable as error:
            if error.reason == "rate_limited":
                budget.drain()
            raise failure_of(error.reason) from None
        except Rejected as error:
            raise PerpdexError(
                "The exchange refused the question.", details={"reason": error.reason}
            ) from None
    if reply.surplus_weight:
        budget.charge(reply.surplus_weight, wallet_id=wallet_id)
    return reply.document


@contextmanager
def _place() -> Iterator[None]:
    places = _feed().places
    if not places.acquire(blocking=False):
        raise budget.refusal("busy", "Too many requests wait for the exchange", retry_after_seconds=1)
    try:
        yield
    finally:
        places.release()


def failure_of(reason: str) -> PerpdexError:
    """Make the failure for an exchange that did not answer, with a hint when to ask again."""
    is_limit = reason == "rate_limited"
    return budget.refusal(
        reason,
        _SENTENCES.get(reason, _SENTENCES["exchange_failed"]),
        retry_after_seconds=_RATE_LIMIT_RETRY_SECONDS if is_limit else _UNREACHABLE_RETRY_SECONDS,
    )


def _feed() -> _Feed:
    # One for each application, made by whoever comes first.
    feed: _Feed = current_app.extensions.setdefault("exchange_feed", _Feed())
    return feed
