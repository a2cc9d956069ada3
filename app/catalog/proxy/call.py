"""One proxied call: find the service, check the wallet and the price, hold or accept a payment, forward, settle.

No credential of the client is forwarded, and only public hosts are called.
"""

import hashlib
import hmac
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from http import HTTPStatus

from werkzeug.wrappers import Response

from app import base_urls
from app.base_urls import BaseUrl
from app.capacity.limiter import quotas_of
from app.catalog.models import Service, ServiceStatus
from app.catalog.proxy.metering import ServiceCall
from app.catalog.services import service as services
from app.catalog.services.service import CallableService
from app.core import clock, identifiers, money
from app.core.checks import CheckedStep
from app.core.request_target import RequestTarget, path_prefix
from app.db.unit_of_work import read_only_unit
from app.errors import InvalidInput, NotFound, PaymentRequired, PerTxLimitExceeded, UpstreamError
from app.forwarding import call, filters
from app.forwarding.call import target_under_prefix
from app.forwarding.relay import ForwardingOptions
from app.identity.guards import is_ours, sdk_keys
from app.identity.principal import Principal, session_of
from app.payments.x402 import gate, guard, terms
from app.payments.x402.gate import PaymentGrant
from app.ports.errors import PortError, Rejected
from app.ports.upstream import UpstreamRequest, UpstreamResponse
from app.spending import policy
from app.spending.policy import SpendingRequest
from app.state import app_state
from app.wallets.core import wallets
from app.wallets.core.wallets import WalletView
from app.web import request_bodies
from app.web.client_request import SIGNATURE_HEADER, ClientRequest

CALL_HEADER = "X-Gateway-Call-Id"
TIMESTAMP_HEADER = "X-Gateway-Timestamp"
MAX_PRICE_HEADER = "X-Max-Price-Usd"
WALLET_HEADER = "X-Wallet-Id"
SESSION_HEADER = "X-Session-Id"
_WALLET_PARAMETER = "wallet_id"
_CHECK_LIMIT, _CHECK_SECONDS = "10 per minute", 15
_USD = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


def forward(request: ClientRequest, service_id: str, caller: Principal) -> Response:
    """Forward a request to a service, paid for with the caller's credits, and return its response unchanged.

    Raises: NotFound, InvalidInput, DomainNotAllowed, PerTxLimitExceeded, SessionLimitExceeded, PayloadTooLarge,
    Unauthorized, InsufficientCredits, Overloaded, UpstreamError, UpstreamTimeout.
    """
    return _exchange(_validated(request, ("v1", "proxy"), service_id, caller), caller)


def forward_payable(request: ClientRequest, service_id: str, caller: Principal | None) -> Response:
    """Forward a request to a service as `forward` does; a payment in the request can pay for it.

    The caller's credits pay; without a caller, or if they do not suffice, the payment.

    Raises: as `forward`; PaymentRequired, PaymentInvalid, PaymentAlreadyUsed, PaymentPending.
    """
    proxied = _validated(request, ("v1", "x402", "services"), service_id, caller)
    price = guard.payable(request).price(
        services.single_payment_nanos(proxied.service.price_nanos), proxied.body,
        provider_name=proxied.service.provider, description="One call of a service of this catalog",
        unavailable_reason=None,
    )  # fmt: skip
    has_payment = price.headers.has_payment
    if caller is None and not has_payment:
        raise gate.attach(price, PaymentRequired())
    return guard.choose_payer(
        caller,
        lambda: price,
        # A payment would not count against the session that the request names.
        has_payment=has_payment and proxied.session_charge is None,
        on_credits=partial(_exchange, proxied),
        prepaid=lambda payer: _exchange(proxied, gate.accept_payment(price, payer=payer)),
    )


@dataclass(frozen=True)
class _ProxiedCall:
    """A call that may be made."""

    request: ClientRequest
    service: CallableService
    url: BaseUrl
    target: RequestTarget
    body: bytes
    wallet_id: str | None
    session_charge: SpendingRequest | None


def _validated(
    request: ClientRequest, prefix: tuple[str, ...], service_id: str, caller: Principal | None
) -> _ProxiedCall:
    service = services.callable_service(service_id)
    wallet = _wallet(request, caller)
    target = target_under_prefix(request, *prefix, service_id).without_parameters({_WALLET_PARAMETER})
    url = base_urls.parse(service.base_url)
    if base_urls.is_own(url, app_state().settings):
        raise UpstreamError("The base URL of this service points to the proxy itself; it cannot be called.")
    if wallet is not None and wallet.spending_controls is not None:
        policy.assert_domain_allowed(wallet.spending_controls, url.host)
    _check_price(request, service)
    request.max_content_length = call.MAX_BODY_BYTES if caller else request_bodies.MAX_KEYLESS_BYTES
    body = request_bodies.raw_body(request)
    session_charge = _session_charge(request, service, wallet, url, caller)
    wallet_id = None if wallet is None else wallet.id
    return _ProxiedCall(request, service, url, target, body, wallet_id, session_charge)


def _exchange(proxied: _ProxiedCall, payer: Principal | PaymentGrant) -> Response:
    request, service, model = proxied.request, proxied.service, f"/{path_prefix(proxied.target.path)}"
    if isinstance(payer, Principal):
        client_id, call_id = payer.account_id, request.id
        paid = ServiceCall(
            service, payer, wallet_id=proxied.wallet_id, model=model, session_charge=proxied.session_charge
        )
    else:
        # Each payment counts as a separate client: it shares neither limits nor idempotency keys with another.
        client_id = call_id = payer.payment_id
        paid = ServiceCall(service, payer, model=model)
    outgoing = _signed_request(proxied, paid.client_id, call_id)
    for key in filter(is_ours, sdk_keys(request)):
        filters.reject_key(key, target=outgoing.target, headers=outgoing.headers, body=outgoing.body)
    options = ForwardingOptions(
        app_state().ports.public_upstream,
        lambda incoming: request.method != "HEAD" and _is_streamed_text(incoming),
        account_id=client_id,
        quotas=quotas_of("service", service.id, client_id),
    )
    return call.forward(request, outgoing, paid, options)


def _is_streamed_text(incoming: UpstreamResponse) -> bool:
    """Return whether a response is plain text without a length, as many models stream their output."""
    named = {name.lower(): value.lower() for name, value in incoming.headers}
    return named.get("content-type", "").startswith("text/plain") and "content-length" not in named


def _wallet(request: ClientRequest, caller: Principal | None) -> WalletView | None:
    """Return the wallet of the call: the one in the request, or the agent's first. Raises: NotFound, Unauthorized."""
    named = request.headers.get(WALLET_HEADER) or request.args.get(_WALLET_PARAMETER)
    if caller is None:
        if named:
            raise guard.key_or_payment_required()
        return None
    named = named or caller.only_wallet_id
    if named:
        return wallets.with_controls(wallets.get_owned(named, agent_id=caller.agent_of_wallet(named)))
    # A further key is bound by the domains of its agent's wallet.
    agent_id = caller.agent_id if caller.limits is None else caller.account_id
    if agent_id is None:
        return None
    try:
        with read_only_unit() as session:
            return wallets.first_wallet(session, agent_id)
    except NotFound:
        return None


def _session_charge(
    request: ClientRequest, service: CallableService, wallet: WalletView | None, url: BaseUrl, caller: Principal | None
) -> SpendingRequest | None:
    """Return what counts against the session in the request, if one is. Raises: InvalidInput, NotFound."""
    named = request.headers.get(SESSION_HEADER)
    if caller is not None:
        named = session_of(caller, named)
    if named is None:
        return None
    session_id = identifiers.parse_id(named)
    if session_id is None or wallet is None:
        raise InvalidInput.field(SESSION_HEADER, "must be the id of a session of this wallet")
    return SpendingRequest(service.price_nanos, domain=url.host, session_id=session_id)


def _check_price(request: ClientRequest, service: CallableService) -> None:
    ceiling = request.headers.get(MAX_PRICE_HEADER)
    if ceiling is None:
        return
    if not _USD.fullmatch(ceiling.strip()):
        raise InvalidInput.field(MAX_PRICE_HEADER, "must be dollars such as 0.01")
    limit_nanos = money.nanos_from_usd(Decimal(ceiling.strip()))
    if service.price_nanos > limit_nanos:
        price, limit = money.usd_from_nanos(service.price_nanos), money.usd_from_nanos(limit_nanos)
        raise PerTxLimitExceeded(
            f"A call of this service costs {price:f} USD, which exceeds {MAX_PRICE_HEADER} ({limit:f} USD).",
            details={"rule": MAX_PRICE_HEADER, "limit_usd": limit, "requested_usd": price},
        )


def _signed_request(proxied: _ProxiedCall, client_id: str, call_id: str) -> UpstreamRequest:
    """Return the outgoing request, signed so that the service can refuse all others."""
    request, service, body = proxied.request, proxied.service, proxied.body
    request_target = proxied.target.join_base(proxied.url.path)
    request_target = request_target if request_target.startswith("/") else f"/{request_target}"
    own_headers = {CALL_HEADER: call_id, **signed_headers(service.secret, request.method, request_target, body)}
    authorization = request.headers.get("X-Upstream-Authorization")
    if authorization:
        own_headers["Authorization"] = authorization
    own_headers |= call.idempotency_key(request, client_id, service.id)
    headers = filters.for_upstream(request.headers, own_headers=own_headers)
    return UpstreamRequest(request.method, proxied.url.origin, request_target, headers, body)


def signed_headers(secret: bytes, method: str, target: str, body: bytes) -> dict[str, str]:
    """Return the headers by which a service recognizes the calls of this one.

    The signature is `v1=` and the hexadecimal HMAC-SHA256 of the lines timestamp, method, target, SHA-256 of the body.
    """
    timestamp = str(int(clock.now().timestamp()))
    message = "\n".join((timestamp, method, target, hashlib.sha256(body).hexdigest()))
    signed = hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()
    return {TIMESTAMP_HEADER: timestamp, SIGNATURE_HEADER: f"v1={signed}"}


def diagnosis(service: Service) -> Iterator[CheckedStep]:
    """Yield why calls can or cannot be bought, up to the step without which others mean nothing, for the owner.

    Raises: RateLimited, Overloaded.
    """
    app_state().rate_limiter.count(_CHECK_LIMIT, "checked-services", service.agent_id)
    is_active = service.status == ServiceStatus.ACTIVE and not service.is_suspended
    state = "stopped by the operator" if service.is_suspended else service.status
    yield CheckedStep("listed", f"The service is {state}; active ones are listed and can be called.", ok=is_active)
    if not is_active:
        return
    try:
        url = base_urls.parse(service.base_url)
        base_urls.assert_public(url, app_state().settings)
    except ValueError as error:
        yield CheckedStep("address", f"The base URL {error}.", ok=False)
        return
    yield CheckedStep("address", "The base URL is a public one.")
    count = len(terms.accepted_payments(services.single_payment_nanos(service.price_nanos)))
    yield CheckedStep("payment", f"Signed payments of this price are accepted now on {count} chains.", ok=count > 0)
    yield _response(service, url)
    with read_only_unit() as session:
        is_specified = bool(services.specification_of(session, service.id).endpoints)
    yield CheckedStep("description", "Buyers read what it does.", ok=bool(service.description), required=False)
    yield CheckedStep("openapi_spec", "Buyers learn its paths from it.", ok=is_specified, required=False)


def _response(service: Service, url: base_urls.BaseUrl) -> CheckedStep:
    """Send a signed request to the base URL, as a call would."""
    target = url.path or "/"
    headers = signed_headers(services.callable_service(service.id).secret, "GET", target, b"")
    outgoing = UpstreamRequest("GET", url.origin, target, [*headers.items()], b"", timeout_seconds=_CHECK_SECONDS)
    quotas = quotas_of("service", service.id, service.agent_id)
    try:
        with closing(app_state().forwarding_limiter.acquire(service.agent_id, quotas)):
            incoming = app_state().ports.public_upstream.send(outgoing)
            incoming.close()
    except Rejected:
        return CheckedStep("response", "The base URL must lead to an address of the public internet.", ok=False)
    except PortError as error:
        return CheckedStep("response", f"The service gave no answer: {error.reason.replace('_', ' ')}.", ok=False)
    is_served = incoming.status < HTTPStatus.INTERNAL_SERVER_ERROR
    detail = f"The base URL answers GET with {incoming.status}; a call is served with a status below 500."
    return CheckedStep("response", detail, ok=is_served)
