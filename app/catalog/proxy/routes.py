"""`/v1/proxy/{service_id}/…`: calls to services of the catalog, charged to your credits."""

from __future__ import annotations

from collections.abc import Callable

import flask
from werkzeug.wrappers import Response

from app.catalog import schemas
from app.catalog.proxy import call as proxy_call
from app.errors import (
    DomainNotAllowed,
    InsufficientCredits,
    Overloaded,
    PayloadTooLarge,
    PaymentAlreadyUsed,
    PaymentInvalid,
    PaymentPending,
    PaymentRequired,
    PerTxLimitExceeded,
    SessionLimitExceeded,
    Unauthorized,
    UpstreamError,
    UpstreamTimeout,
)
from app.forwarding.entry import ForwardedRoute
from app.forwarding.raw_target import DOCUMENTED_METHODS, UNDOCUMENTED_METHODS
from app.identity import guards
from app.identity.principal import Principal
from app.identity.service import recall_principal
from app.payments.x402 import guard
from app.web.blueprint import Blueprint, Guard
from app.web.client_request import ClientRequest, current_request
from app.web.openapi import response_headers

_RULE = "/<service_id>/<rest:path>"
_SHORT_RULE = "/<service_id>"


def _authenticate(request: ClientRequest) -> Principal | None:
    # Authorization belongs to the service, so a key is in X-API-Key only.
    return guard.authenticate(request, recall_principal(request.headers.get("X-API-Key")))


def _authorize(request: ClientRequest) -> None:
    _authenticate(request)


_GUARD = Guard(schemes=(guards.API_KEY_SCHEME, guards.PAYMENT_SCHEME), check=_authorize)
"""An API key that pays with its credits, or a payment for this call."""

proxy = Blueprint(
    "proxy",
    guard=_GUARD,
    url_prefix="/v1/proxy",
    description="Calls to services of the catalog. The service's response is returned unchanged.",
)


def serve(request: ClientRequest, service_id: str) -> Response:
    """Serve a call of a service, as the views below do. Raises: ServiceError."""
    return proxy_call.forward(request, service_id, _authenticate(request))


FORWARDED_ROUTE = ForwardedRoute(proxy.url_prefix, _RULE, lambda _: True, serve)


def _forwarding(method: str) -> Callable[..., Response]:
    def call(service_id: str, path: str = "") -> Response:
        del path  # taken from the request line, which has not been decoded
        return proxy_call.forward(current_request(), service_id, guards.find_principal())

    call.__name__ = f"proxy_{method.lower()}"
    call.__doc__ = f"""Forward a {method} to a service and return its response unchanged.

    Path, query (without `wallet_id`) and body are forwarded below the service's base URL. The price is charged once
    for a response with a status below 500. Your keys and cookies are not forwarded; a call that contains your key
    anywhere but in X-API-Key is refused.
    """
    return call


_NOTES = (
    (
        proxy_call.WALLET_HEADER,
        "The wallet of the call; its allowlist of domains applies. Default: the first.",
    ),
    (
        proxy_call.SESSION_HEADER,
        "A session of this wallet. The price counts against its budget, but not against the wallet's limits.",
    ),
    (proxy_call.MAX_PRICE_HEADER, "Refuse the call with 403 if its price is higher, in US dollars."),
    ("X-Upstream-Authorization", "Forwarded as `Authorization`, for services that gave you a key."),
)

for _method in DOCUMENTED_METHODS:
    _view = proxy.response(
        200,
        schemas.ProxiedAnswer,
        description="The response of the service.",
        headers=response_headers("X-Gateway-Request-Id", "X-Cost-Usd", "X-Credits-Remaining"),
    )(
        proxy.raises(
            Unauthorized, InsufficientCredits, PaymentRequired, PaymentInvalid, PaymentAlreadyUsed, PaymentPending,
            PerTxLimitExceeded, SessionLimitExceeded, DomainNotAllowed, PayloadTooLarge, Overloaded, UpstreamError,
            UpstreamTimeout,
        )(_forwarding(_method))
    )  # fmt: skip
    for _name, _note in _NOTES:
        _view = proxy.header(_name, _note)(_view)
    # HEAD is included in GET. OPTIONS of all routes is handled by app.web.cors.
    _view.provide_automatic_options = False
    proxy.route(_RULE, methods=[_method])(_view)

for _rule, _methods in (
    (_RULE, UNDOCUMENTED_METHODS),
    (_SHORT_RULE, (*DOCUMENTED_METHODS, *UNDOCUMENTED_METHODS)),
):
    flask.Blueprint.add_url_rule(
        proxy,
        _rule,
        f"proxy_others_{len(_methods)}",
        _forwarding("call"),
        methods=list(_methods),
        provide_automatic_options=False,
    )
