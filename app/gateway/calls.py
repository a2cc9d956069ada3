"""The story of a call: checks, price, hold, forward, settle. Every way out of it ends the hold."""

from __future__ import annotations

from flask import Response, request

from app.errors import InsufficientCredits, InvalidInput, ProviderNotConfigured
from app.gateway import denials, paying
from app.gateway.dialects.requests import read_call
from app.gateway.metering import FixedMeter, HeldMeter, Meter, PaidMeter
from app.gateway.paying import Asked
from app.gateway.pricing import TokenPrices, rpc_methods
from app.gateway.providers import Provider
from app.identity.caller import Caller
from app.identity.guards import presented_keys
from app.payments import desk, presentation
from app.ports import provider as ports
from app.ports.upstream import Outgoing
from app.web import calls, relayed_headers
from app.web.calls import MAX_BODY_BYTES, Way
from app.web.targets import target_below

# Whoever has no key is unknown, and to be told a price costs nothing: reading for it has to be cheap.
MAX_KEYLESS_BODY_BYTES = 4 * 2**20
_LEAST_KEY_LETTERS = 20
# Parameters that some upstream takes as a credential: it would win over the operator's, or name the caller's.
_CREDENTIAL_PARAMETERS = frozenset(
    {
        "key",
        "$key",
        "api_key",
        "apikey",
        "api-key",
        "access_token",
        "$access_token",
        "oauth_token",
        "bearer_token",
        "x_cg_demo_api_key",
        "x_cg_pro_api_key",
        "$httpmethod",
        "_method",
    }
)


def forward(row: Provider, caller: Caller | None, *, named: str) -> Response:
    """Forward the present request to a provider, called `named` by the caller, and return its answer.

    Paid for by the caller's credits; without a caller, or where these do not suffice, by the payment that came along.

    Raises: PaymentRequired, ProviderNotConfigured, RouteNotAllowed, InvalidInput, NotFound, PayloadTooLarge,
    InsufficientCredits, PaymentInvalid, PaymentAlreadyUsed, Overloaded, UpstreamError, UpstreamTimeout.
    """
    has_payment = presentation.is_present()
    if caller is None and not has_payment:
        raise desk.required(paying.offer(row, lambda: _asked(row, named, most=MAX_KEYLESS_BODY_BYTES)))
    if not row.is_configured:
        raise ProviderNotConfigured
    asked = _asked(row, named, most=MAX_BODY_BYTES if caller else MAX_KEYLESS_BODY_BYTES)
    if caller is None:
        return _forward_paid(row, asked, None)
    meter, body = _priced(row, caller, asked)
    try:
        outgoing = _outgoing(row, asked, body, scope=caller.account_id)
        return _made(row, meter, outgoing, whose=caller.account_id)
    except InsufficientCredits as refusal:
        if has_payment:
            return _forward_paid(row, asked, caller)
        raise desk.with_terms(refusal, paying.offer(row, lambda: asked)) from None


def _forward_paid(row: Provider, asked: Asked, caller: Caller | None) -> Response:
    bill = paying.bill(row, asked)
    ticket = desk.accept(bill.price, agent_id=caller.agent_id if caller else None)
    meter = PaidMeter(row, bill.quote, ticket, is_streamed=bill.is_streamed)
    # Who pays by the call holds no more than was paid for: each payment is somebody of its own.
    outgoing = _outgoing(row, asked, bill.body, scope=ticket.payment_id)
    return _made(row, meter, outgoing, whose=ticket.payment_id)


def _made(row: Provider, meter: Meter, outgoing: Outgoing, *, whose: str) -> Response:
    way = Way(
        ports.current().upstream,
        lambda _incoming: meter.is_streamed,
        whose=whose,
        drains=isinstance(meter, HeldMeter),
        secrets=(row.api_key,) if row.api_key else (),
    )
    return calls.forward(outgoing, meter, way)


def _asked(row: Provider, named: str, *, most: int) -> Asked:
    """Read what is asked for, and refuse what is not offered.

    Raises: RouteNotAllowed, InvalidInput, PayloadTooLarge beyond so many bytes.
    """
    target = target_below("v1", "gateway", named).without_parameters(_CREDENTIAL_PARAMETERS)
    place = row.place(target)
    denials.check_route(row.denied_routes, request.method, place.path)
    denials.check_parameters(row.denied_parameters, target.query, request.headers.items())
    body = _body(most)
    denials.check_fields(row.denied_fields, body)
    if row.denied_methods is not None or place.methods is not None:
        denials.check_methods(rpc_methods(body), denied=row.denied_methods, allowed=place.methods)
    facts = None
    if row.dialect is not None:
        facts = read_call(
            row.dialect, request.method, place.path, body=body, content_type=request.content_type
        )
    return Asked(place, body, facts)


def _body(most: int) -> bytes:
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        raise InvalidInput(
            "Send the request body without a Content-Encoding: it has to be read to be priced."
        )
    return calls.body(most)


def _priced(row: Provider, caller: Caller, asked: Asked) -> tuple[Meter, bytes]:
    """Return what will watch the call, and the body to send. Raises: InvalidInput."""
    facts = asked.facts
    quote = paying.quote(row, asked)
    if quote.is_fixed or facts is None or not isinstance(row.price, TokenPrices):
        return FixedMeter(row, caller, quote), asked.body
    meter = HeldMeter(row, caller, quote, prices=row.price, facts=facts)
    return meter, facts.body


def _outgoing(row: Provider, asked: Asked, body: bytes, *, scope: str) -> Outgoing:
    place = asked.place
    return Outgoing(request.method, place.origin, place.target, _headers(row, scope), body)


def _headers(row: Provider, scope: str) -> list[tuple[str, str]]:
    ours = dict(row.credential_headers())
    # All callers share one account there.
    ours |= calls.idempotency_key(scope, row.slug)
    # Not a placeholder that a client puts where its key would stand: that may be in any header.
    keys = [key for key in presented_keys() if len(key) >= _LEAST_KEY_LETTERS]
    given = [
        (name, value) for name, value in request.headers.items() if not any(key in value for key in keys)
    ]
    return relayed_headers.for_upstream(given, ours=ours, defaults=row.default_headers)
