"""The story of a proxied call: find the service, check whose wallet and which price, hold, forward, settle.

Nothing by which the caller could be impersonated leaves the house, and nothing is reached that is not public.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from decimal import Decimal
from urllib.parse import unquote

from flask import Response, request

from app.catalog import base_urls, services
from app.catalog.base_urls import BaseUrl
from app.catalog.metering import CallMeter
from app.catalog.services import CallableService
from app.core import clock, money
from app.core.unit_of_work import reading
from app.errors import (
    DomainNotAllowed,
    InvalidInput,
    NotFound,
    PayloadTooLarge,
    PerTxLimitExceeded,
    ServiceError,
    UpstreamError,
)
from app.identity.caller import Caller
from app.ports import provider
from app.ports.errors import PortError
from app.ports.upstream import Incoming, Outgoing
from app.spending import policy
from app.wallets import service as wallets
from app.wallets.service import WalletView
from app.web import forwarding, relayed_headers
from app.web.forwarding import Share
from app.web.parsing import body_of
from app.web.targets import Target, target_below, upper_path

MAX_BODY_BYTES = 32 * 2**20
SIGNATURE_HEADER = "X-Gateway-Signature"
TIMESTAMP_HEADER = "X-Gateway-Timestamp"
MAX_PRICE_HEADER = "X-Max-Price-Usd"
WALLET_HEADER = "X-Wallet-Id"
_WALLET_PARAMETER = "wallet_id"
_USD = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", re.ASCII)


def refuse_loops() -> None:
    """Refuse a request that a proxied call has led to: a service whose address is one of ours in disguise.

    Raises: InvalidInput.
    """
    if SIGNATURE_HEADER in request.headers:
        raise InvalidInput(
            f"This request comes out of the proxy itself ({SIGNATURE_HEADER}): a service must not lead back here."
        )


def forward(service_id: str, caller: Caller) -> Response:
    """Forward the present request to a service and return its answer as it is.

    Raises: NotFound, InvalidInput, DomainNotAllowed, PerTxLimitExceeded, PayloadTooLarge, InsufficientCredits,
    Overloaded, UpstreamError, UpstreamTimeout.
    """
    service = services.for_calling(service_id)
    wallet = _wallet(caller)
    target = target_below("v1", "proxy", service_id).without_parameters({_WALLET_PARAMETER})
    url = base_urls.parse(service.base_url)
    if base_urls.is_own(url, provider.settings()):
        raise UpstreamError("This service's address leads to this service itself; it cannot be called.")
    _check_domain(wallet, url)
    _check_price(service)
    outgoing = _signed(service, caller, url, target, _body())
    _keep_key(outgoing)
    model = f"/{upper_path(target.path)}"
    meter = CallMeter(service, caller, wallet_id=None if wallet is None else wallet.id, model=model)
    lane = forwarding.enter_lane(*_shares(service, caller))
    try:
        meter.begin()
        return _answered(meter, lane, outgoing)
    except BaseException:
        lane.leave()
        raise


def _answered(meter: CallMeter, lane: forwarding.Lane, outgoing: Outgoing) -> Response:
    try:
        incoming = provider.current().public_upstream.send(outgoing)
    except PortError as error:
        meter.unanswered(counts=True)
        raise forwarding.failure_of(error) from None
    except BaseException:
        meter.unanswered(counts=False)
        raise
    try:
        meter.answered(incoming.status)
        return forwarding.relay(incoming, meter, lane, streamed=_is_text_in_the_making(incoming))
    except ServiceError:
        raise  # the relay has ended the call
    except BaseException:
        incoming.close()
        meter.unanswered(counts=False)
        raise


def _is_text_in_the_making(incoming: Incoming) -> bool:
    """Tell whether an answer is plain text of no stated length: that is how many models' words are streamed."""
    named = {name.lower(): value.lower() for name, value in incoming.headers}
    has_length = "content-length" in named or request.method == "HEAD"
    return named.get("content-type", "").startswith("text/plain") and not has_length


def _shares(service: CallableService, caller: Caller) -> tuple[Share, ...]:
    """Keep lanes for providers, for other services and for other callers, however long a stranger's server hangs."""
    return (
        Share("services", 2, "to services"),
        Share(f"service:{service.id}", 4, "to this service"),
        Share(f"account:{caller.account_id}", 4, "of yours"),
    )


def _wallet(caller: Caller) -> WalletView | None:
    """Return the wallet that the call counts for: the one named, else the agent's first. Raises: NotFound."""
    named = request.headers.get(WALLET_HEADER) or request.args.get(_WALLET_PARAMETER)
    if named:
        return wallets.with_controls(wallets.owned(named, agent_id=caller.agent_id))
    if caller.agent_id is None:
        return None
    try:
        with reading():
            return wallets.first_of(caller.agent_id)
    except NotFound:
        return None


def _check_domain(wallet: WalletView | None, url: BaseUrl) -> None:
    controls = None if wallet is None else wallet.spending_controls
    if controls is None or not controls.allowed_domains:
        return
    if not policy.domain_allowed(url.host, controls.allowed_domains):
        raise DomainNotAllowed(
            f"The domain {url.host} is not on this wallet's allowlist of domains.",
            details={"rule": policy.Rule.DOMAIN.value, "domain": url.host},
        )


def _check_price(service: CallableService) -> None:
    ceiling = request.headers.get(MAX_PRICE_HEADER)
    if ceiling is None:
        return
    if not _USD.fullmatch(ceiling.strip()):
        raise InvalidInput.field(MAX_PRICE_HEADER, "must be dollars such as 0.01")
    limit_nanos = money.nanos_from_usd(Decimal(ceiling.strip()))
    if service.price_nanos > limit_nanos:
        price, limit = money.usd_from_nanos(service.price_nanos), money.usd_from_nanos(limit_nanos)
        raise PerTxLimitExceeded(
            f"A call of this service costs {price:f} USD, more than {MAX_PRICE_HEADER} allows ({limit:f} USD).",
            details={"rule": MAX_PRICE_HEADER, "limit_usd": limit, "requested_usd": price},
        )


def _body() -> bytes:
    request.max_content_length = MAX_BODY_BYTES
    try:
        return body_of(request)
    except PayloadTooLarge:
        raise PayloadTooLarge(
            f"The request body is too large: at most {MAX_BODY_BYTES // 2**20} MiB."
        ) from None


def _signed(service: CallableService, caller: Caller, url: BaseUrl, target: Target, body: bytes) -> Outgoing:
    """Write the request that goes out, signed so that the service can refuse everybody else's."""
    line = target.below(url.path)
    line = line if line.startswith("/") else f"/{line}"
    timestamp = str(int(clock.now().timestamp()))
    ours = {
        TIMESTAMP_HEADER: timestamp,
        SIGNATURE_HEADER: signature(service.secret, timestamp, request.method, line, body),
    }
    authorization = request.headers.get("X-Upstream-Authorization")
    if authorization:
        ours["Authorization"] = authorization
    key = request.headers.get("Idempotency-Key")
    if key:
        # The same word of two callers must not be one request there.
        scoped = hashlib.sha256(f"{caller.account_id}\n{service.id}\n{key}".encode()).hexdigest()
        ours["Idempotency-Key"] = f"purser-{scoped[:48]}"
    headers = relayed_headers.for_upstream(request.headers.items(), ours=ours)
    return Outgoing(request.method, url.origin, line, headers, body)


def _keep_key(outgoing: Outgoing) -> None:
    """Refuse to hand the caller's key to a seller who has talked it into sending that. Raises: InvalidInput."""
    key = request.headers["X-API-Key"]
    places = {
        "address": key in unquote(outgoing.target),
        "headers": any(key in value for _, value in outgoing.headers),
        "body": key.encode() in outgoing.body,
    }
    for place, found in places.items():
        if found:
            raise InvalidInput(
                f"The {place} of this call would give your own key to the seller. Send it as X-API-Key only.",
                details={"fields": {place: ["must not hold your key"]}},
            )


def signature(secret: bytes, timestamp: str, method: str, target: str, body: bytes) -> str:
    """Return `v1=` and the hexadecimal HMAC-SHA256 over timestamp, method, target and the body's SHA-256, by lines."""
    message = "\n".join((timestamp, method, target, hashlib.sha256(body).hexdigest()))
    return "v1=" + hmac.new(secret, message.encode(), hashlib.sha256).hexdigest()
