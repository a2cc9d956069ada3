"""Calls to services of the catalog: `/v1/proxy` with a key, `/v1/x402/services` also with a payment of each call."""

from typing import Any

from werkzeug.wrappers import Response

from app import errors
from app.catalog import schemas
from app.catalog.models import Service
from app.catalog.proxy import call as proxy_call
from app.catalog.services.routes import blp as owned
from app.forwarding.call import DOCUMENTED_METHODS, PAYMENT_CHAIN, UNDOCUMENTED_METHODS, ForwardedRoute, add_views
from app.identity import guards
from app.identity.guards import sdk_keys
from app.identity.principal import Principal
from app.identity.service import recall_principal
from app.payments.x402 import guard
from app.web.blueprint import Blueprint, Guard
from app.web.client_request import ClientRequest, current_request
from app.web.openapi import JSON_BODY, MULTIPART_BODY, OTHER_BODIES
from app.web.schemas import PurchaseCheck, checked

_RULE = "/<service_id>/<rest:path>"


def _find_holder(request: ClientRequest) -> Principal | None:
    """Return the holder of the key in X-API-Key, or of an access token in Authorization; no other place is read.

    Raises: Unauthorized for two different keys, and for a valid one elsewhere, whose holder should not pay again.
    """
    keys = sdk_keys(request)
    if (key := guards.api_key(request)) is not None or not keys:
        return recall_principal(key)
    if any(recall_principal(key) for key in keys):
        raise errors.Unauthorized("Send your API key in the X-API-Key header on this route, and nowhere else.")
    return None


def _authenticate_key(request: ClientRequest) -> Principal:
    found = _find_holder(request)
    if found is None:
        guards.allow_keyless(request)
        raise errors.Unauthorized(
            "A valid API key is required in the X-API-Key header. Without an account, this service can be called and"
            " paid for with USDC (x402) below /v1/x402/services."
        )
    guards.authenticate_as(request, found)
    return found


def _authenticate_payer(request: ClientRequest) -> Principal | None:
    return guard.authenticate(request, _find_holder(request))


_KEYS, _PAYERS = (guards.API_KEY_SCHEME,), (guards.API_KEY_SCHEME, guards.PAYMENT_SCHEME)
proxy = Blueprint("proxy", guard=Guard(_KEYS, _authenticate_key), url_prefix="/v1/proxy")
paid_services = Blueprint("x402_services", guard=Guard(_PAYERS, _authenticate_payer), url_prefix="/v1/x402/services")


def serve(request: ClientRequest, service_id: str) -> Response:
    """Serve a call with a key, as the views of `/v1/proxy` do. Raises: ServiceError."""
    return proxy_call.forward(request, service_id, _authenticate_key(request))


def serve_payer(request: ClientRequest, service_id: str) -> Response:
    """Serve a call with a payment or a key, as the views of `/v1/x402/services` do. Raises: ServiceError."""
    return proxy_call.forward_payable(request, service_id, _authenticate_payer(request))


@owned.post("/<string:service_id>/check")
@owned.response(200, PurchaseCheck)
@owned.raises(errors.Overloaded)
def check_service(service: Service) -> dict[str, Any]:
    """Check step by step whether others can buy calls of your service.

    A signed `GET` is sent to its base URL. At most ten checks a minute.
    """
    return checked(proxy_call.diagnosis(service))


FORWARDED_ROUTES = (
    ForwardedRoute(proxy.url_prefix, _RULE, lambda _: True, serve),
    ForwardedRoute(paid_services.url_prefix, _RULE, lambda _: True, serve_payer),
)


_NOTES = {
    proxy_call.WALLET_HEADER: "The wallet of the call; its allowlist of domains applies. Default: the first.",
    proxy_call.SESSION_HEADER: "A session of this wallet. The price counts against its budget, but not against the"
    " wallet's limits.",
    proxy_call.MAX_PRICE_HEADER: "Refuse the call with 403 if its price is higher, in US dollars.",
    "X-Upstream-Authorization": "Forwarded as `Authorization`, for services that gave you a key.",
}
_ERRORS = (
    errors.Unauthorized, errors.InsufficientCredits, errors.PerTxLimitExceeded, errors.SessionLimitExceeded,
    errors.DomainNotAllowed, errors.PayloadTooLarge, errors.Overloaded, errors.UpstreamError, errors.UpstreamTimeout,
)  # fmt: skip
_TEXT = """a service and return its response unchanged.

    Path, query (without `wallet_id`) and body are forwarded below the service's base URL. The price is charged once
    for a response with a status below 500. Your keys and cookies are not forwarded; a call that contains your key
    anywhere but in X-API-Key is refused. """
_BODIES = {**JSON_BODY, **OTHER_BODIES, **MULTIPART_BODY}
_OTHERS = {_RULE: UNDOCUMENTED_METHODS, "/<service_id>": (*DOCUMENTED_METHODS, *UNDOCUMENTED_METHODS)}


add_views(
    proxy, _RULE, lambda service_id: proxy_call.forward(current_request(), service_id, guards.current_principal()),
    name=proxy.name, text=_TEXT, answer=schemas.ProxiedAnswer, errors=_ERRORS, request_headers=_NOTES, bodies=_BODIES,
    others=_OTHERS,
)  # fmt: skip
add_views(
    paid_services, _RULE,
    lambda service_id: proxy_call.forward_payable(current_request(), service_id, guards.find_principal()),
    name=paid_services.name, text=f"{_TEXT}A call without a key and a payment is answered 402 with the terms.",
    answer=schemas.ProxiedAnswer,
    errors=(*_ERRORS, errors.PaymentRequired, errors.PaymentInvalid, errors.PaymentAlreadyUsed, errors.PaymentPending),
    request_headers=_NOTES | PAYMENT_CHAIN, bodies=_BODIES, others=_OTHERS,
)  # fmt: skip
