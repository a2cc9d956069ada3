"""`/v1/gateway/<provider>/…`: calls forwarded with the operator's credential; `/v1/providers`: who can be called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import flask
from flask import Response

from app.errors import (
    InsufficientCredits,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    PaymentAlreadyUsed,
    PaymentInvalid,
    PaymentRequired,
    ProviderNotConfigured,
    RouteNotAllowed,
    Unauthorized,
    UpstreamError,
    UpstreamTimeout,
)
from app.gateway import calls, doors, listing, schemas
from app.identity import guards
from app.web.blueprint import OPEN, Blueprint
from app.web.targets import DOCUMENTED_METHODS, FURTHER_METHODS

# Whoever answers a TRACE repeats the request, in which the operator's credential is.
_FURTHER_METHODS = tuple(method for method in FURTHER_METHODS if method != "TRACE")

gateway = Blueprint(
    "gateway",
    __name__,
    guard=doors.GATEWAY,
    url_prefix="/v1/gateway",
    description="Calls to upstream services, with this service's credentials and charged to the caller's credits.",
)
providers = Blueprint(
    "providers",
    __name__,
    guard=OPEN,
    url_prefix="/v1/providers",
    description="Which upstream services can be called, and what that costs.",
)


def _forwarding(method: str) -> Callable[..., Response]:
    def forward(provider: str, path: str) -> Response:
        del path  # taken from the request line, where it has not been decoded
        return calls.forward(doors.provider(), guards.find_caller(), named=provider)

    forward.__name__ = f"forward_{method.lower()}"
    forward.__doc__ = f"""Forward a {method} to a provider and return its answer as it is.

    Path, query and body are passed on; `GET /v1/providers` lists the providers.
    """
    return forward


for _method in DOCUMENTED_METHODS:
    _view = gateway.response(200, schemas.UpstreamAnswerShape, description="What the upstream answered.")(
        gateway.raises(
            Unauthorized, InsufficientCredits, PaymentRequired, PaymentInvalid, PaymentAlreadyUsed, RouteNotAllowed,
            NotFound, PayloadTooLarge, ProviderNotConfigured, Overloaded, UpstreamError, UpstreamTimeout,
        )(_forwarding(_method))
    )  # fmt: skip
    # HEAD comes with GET; OPTIONS would, too, but is the upstream's to answer.
    _view.provide_automatic_options = False
    gateway.route("/<provider>/<rest:path>", methods=[_method])(_view)
flask.Blueprint.add_url_rule(
    gateway,
    "/<provider>/<rest:path>",
    "forward_others",
    _forwarding("call"),
    methods=list(_FURTHER_METHODS),
    provide_automatic_options=False,
)


@providers.get("")
@providers.response(200, schemas.ProviderList)
def list_providers() -> dict[str, Any]:
    """List the providers that calls can be forwarded to, with their prices."""
    return {"providers": listing.rows()}
