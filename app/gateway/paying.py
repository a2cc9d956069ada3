"""The price of a call for somebody who pays for it alone: the worst case of its very body, and at least the floor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flask import request

from app.core import clock, money
from app.errors import ServiceError
from app.gateway.dialects import injection
from app.gateway.dialects.facts import CallFacts
from app.gateway.pricing import Quote, Request
from app.gateway.providers import Place, Provider
from app.payments import terms
from app.payments.terms import Price
from app.ports import provider as ports
from app.web.targets import request_target

# What a call may write that is paid for beforehand and does not say so itself.
TOKENS_OUT_UNSAID = 4_000


@dataclass(frozen=True, slots=True)
class Asked:
    """A call that may be made: where it goes, its body as sent, and what was read in it."""

    place: Place
    body: bytes
    facts: CallFacts | None


@dataclass(frozen=True, slots=True)
class Bill:
    """What a call costs its payer, and the body that keeps to it."""

    price: Price
    quote: Quote
    body: bytes
    is_streamed: bool


def quote(row: Provider, asked: Asked) -> Quote:
    """Return what a call may cost. Raises: InvalidInput beyond what one call may."""
    found = row.price.quote(
        Request(at=clock.now(), path=asked.place.path, body=asked.body, facts=asked.facts)
    )
    found.check(money.nanos_from_usd(ports.settings().gateway_max_call_usd))
    return found


def bill(row: Provider, asked: Asked) -> Bill:
    """Price a call that is paid for beforehand, its output bounded. Raises: InvalidInput."""
    body, facts = asked.body, asked.facts
    if facts is not None:
        facts = injection.bound_output(facts, body, TOKENS_OUT_UNSAID)
        body = facts.body
    found = quote(row, Asked(asked.place, body, facts))
    nanos = max(terms.floor_nanos(row.x402_floor_nanos), found.worst.cost_nanos)
    return Bill(
        _price(row, nanos, body=asked.body), found, body, is_streamed=facts is not None and facts.is_streamed
    )


def offer(row: Provider, ask: Callable[[], Asked]) -> Price:
    """Return the price to tell; where the call would be refused however it is paid for, with what is in its way."""
    floor = terms.floor_nanos(row.x402_floor_nanos)
    if not row.is_configured:
        return _price(row, floor, obstacle="this provider is not configured on this service.")
    try:
        return bill(row, ask()).price
    except ServiceError as refusal:
        return _price(row, floor, obstacle=f"this request would be refused. {refusal.message}")


def _price(row: Provider, nanos: int, *, body: bytes = b"", obstacle: str | None = None) -> Price:
    target = request_target()
    return Price(
        nanos=nanos,
        fingerprint=terms.fingerprint_of(request.method, target, body),
        provider=row.slug,
        resource=ports.settings().public_url + target.partition("?")[0],
        description=f"One call of {row.slug} through this gateway",
        obstacle=obstacle,
    )
