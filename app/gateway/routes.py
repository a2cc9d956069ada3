"""`/v1/gateway/<provider>/…`: calls forwarded with the operator's credential; `/v1/providers`: their list."""

from typing import Any

from werkzeug.wrappers import Response

from app import errors
from app.forwarding.call import CALL_HEADERS, PAYMENT_CHAIN, UNDOCUMENTED_METHODS, ForwardedRoute, add_views
from app.gateway import call, fallback, schemas
from app.gateway.dialects.request.cost_params import Surface
from app.gateway.providers import operations
from app.gateway.providers.table import Provider, ProviderTable
from app.identity import guards
from app.identity.principal import Principal
from app.identity.service import recall_principal
from app.payments.x402 import guard
from app.state import app_state
from app.web.blueprint import PUBLIC, Blueprint, Guard, documentation_section
from app.web.client_request import ClientRequest, current_request
from app.web.openapi import JSON_BODY, MULTIPART_BODY, response_headers

_RULE = "/<provider>/<rest:path>"
# A response to TRACE repeats the request, which contains the operator's credential.
_FURTHER_METHODS = tuple(method for method in UNDOCUMENTED_METHODS if method != "TRACE")


def _find_provider(name: str) -> Provider:
    return app_state().part(ProviderTable).find(name)


def _authenticate(request: ClientRequest) -> Principal | None:
    return guard.authenticate(request, guards.find_principal_by_sdk_key(request, recall_principal))


def _authorize(request: ClientRequest) -> None:
    _find_provider((request.view_args or {})["provider"])
    _authenticate(request)


def _require_key(request: ClientRequest) -> None:
    found = guards.find_principal_by_sdk_key(request, recall_principal)
    if found is None:
        raise errors.Unauthorized
    guards.authenticate_as(request, found)


def serve(request: ClientRequest, name: str) -> Response:
    """Serve a call of the provider with this name, as the views below do. Raises: ServiceError."""
    provider = _find_provider(name)
    return call.forward(request, provider, _authenticate(request), provider_name=name)


def forwarded_route(providers: ProviderTable) -> ForwardedRoute:
    return ForwardedRoute(gateway.url_prefix, _RULE, providers.has, serve)


_GUARD = Guard(schemes=(guards.API_KEY_SCHEME, guards.BEARER_SCHEME, guards.PAYMENT_SCHEME), check=_authorize)
"""An API key that pays with its credits, or a payment for this call."""

gateway = Blueprint("gateway", guard=_GUARD, url_prefix="/v1/gateway")
providers = Blueprint("providers", guard=PUBLIC, url_prefix="/v1/providers", cacheable=True)
_CALL_ERRORS = (
    errors.Unauthorized, errors.InsufficientCredits, errors.RouteNotAllowed, errors.PayloadTooLarge,
    errors.ProviderNotConfigured, errors.Overloaded, errors.UpstreamError, errors.UpstreamTimeout,
)  # fmt: skip
_LIMIT_HEADERS = (
    "X-Max-Tokens-Applied", "X-Max-Tool-Calls-Applied", "X-Max-Uses-Applied", "X-Max-Content-Tokens-Applied",
    "X-Advisor-Max-Tokens-Applied",
)  # fmt: skip

add_views(
    gateway,
    _RULE,
    lambda provider: call.forward(
        current_request(), _find_provider(provider), guards.find_principal(), provider_name=provider
    ),
    name="forward",
    text="""a provider and return its response unchanged.

    Path, query and body are forwarded if the path is one of the provider's routes; `GET /v1/providers` lists them.
    If the credits do not cover the maximum output of a call to a language model, its output limit (such as
    `max_tokens`) is lowered to what they cover, and the response states it as `X-Max-Tokens-Applied`. Limits that its
    hosted tools lack are added and stated in the same way.
    """,
    answer=schemas.UpstreamAnswerShape,
    errors=(
        *_CALL_ERRORS, errors.PaymentRequired, errors.PaymentInvalid, errors.PaymentAlreadyUsed, errors.PaymentPending,
        errors.NotFound,
    ),
    request_headers=PAYMENT_CHAIN,
    bodies={**JSON_BODY, **MULTIPART_BODY},
    further_response_headers=_LIMIT_HEADERS,
    others={_RULE: _FURTHER_METHODS},
)  # fmt: skip


models = Blueprint(
    "models",
    guard=Guard(schemes=_GUARD.schemes[:2], check=_require_key, errors=(errors.InsufficientScope,)),
    url_prefix="/v1",
)


def _add_endpoint(rule: str, surface: Surface, name: str) -> None:
    def view() -> Response:
        return fallback.serve(current_request(), surface, guards.current_principal())

    view.__name__ = f"create_{name}"
    view.__doc__ = f"Create a {name.replace('_', ' ')} by the first of the named models that answers."
    headers = response_headers("X-Gateway-Model", *CALL_HEADERS, *_LIMIT_HEADERS)
    documented = models.raises(*_CALL_ERRORS)(models.response(200, schemas.UpstreamAnswerShape, headers=headers)(view))
    documentation_section(documented, "manual_doc")["requestBody"] = {"content": JSON_BODY}
    models.route(rule, methods=["POST"])(documented)


_add_endpoint("/chat/completions", Surface.CHAT, "chat_completion")
_add_endpoint("/messages", Surface.MESSAGES, "message")
_add_endpoint("/responses", Surface.RESPONSES, "response")
_add_endpoint("/embeddings", Surface.EMBEDDINGS, "list_of_embeddings")


@models.get("/models")
@models.response(200, schemas.ModelList)
def list_models() -> dict[str, Any]:
    """List the models that can be named in `model`, with the prices of their tokens."""
    return {"object": "list", "data": operations.list_models()}


@models.get("/models/<path:model_id>")
@models.response(200, schemas.ModelShape)
def get_model(model_id: str) -> dict[str, Any]:
    """Return a model of the list."""
    for each in operations.list_models():
        if each["id"] == model_id:
            return each
    raise errors.NotFound


@providers.get("")
@providers.response(200, schemas.ProviderList)
def list_providers() -> dict[str, Any]:
    """List the providers that calls can be forwarded to, with their prices."""
    return {"providers": operations.list_providers()}
