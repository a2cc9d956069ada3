"""`/v1/proxy/{service_id}/…`: calls to services of the catalog, charged to the caller's credits."""

from __future__ import annotations

from collections.abc import Callable

import flask
from flask import Response

from app.catalog import proxy as story
from app.catalog import schemas
from app.errors import (
    DomainNotAllowed,
    InsufficientCredits,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    PerTxLimitExceeded,
    Unauthorized,
    UpstreamError,
    UpstreamTimeout,
)
from app.identity import guards
from app.web.blueprint import Blueprint
from app.web.targets import DOCUMENTED_METHODS, FURTHER_METHODS

_RULE = "/<service_id>/<rest:path>"
_SHORT_RULE = "/<service_id>"

proxy = Blueprint(
    "proxy",
    __name__,
    guard=guards.ANY_KEY,
    url_prefix="/v1/proxy",
    description="Calls to services of the catalog. The service's answer comes back as it is.",
)


def _forwarding(method: str) -> Callable[..., Response]:
    def call(service_id: str, path: str = "") -> Response:
        del path  # taken from the request line, where it has not been decoded
        return story.forward(service_id, guards.caller())

    call.__name__ = f"proxy_{method.lower()}"
    call.__doc__ = f"""Forward a {method} to a service and return its answer as it is.

    Path, query (less `wallet_id`) and body are passed on below the service's base address. The price is charged for
    an answer with a status below 500, once. Your keys and cookies are not passed on; a call that carries your key
    anywhere but in X-API-Key is refused.
    """
    return call


_NOTES = (
    (
        story.WALLET_HEADER,
        "The wallet that the call counts for; its allowlist of domains applies. Default: the first.",
    ),
    (story.MAX_PRICE_HEADER, "Refuse the call with 403 where its price is higher, in US dollars."),
    ("X-Upstream-Authorization", "Passed on as `Authorization`, for services that have given you a key."),
)

for _method in DOCUMENTED_METHODS:
    _view = proxy.response(200, schemas.ProxiedAnswer, description="What the service answered.")(
        proxy.raises(
            Unauthorized, InsufficientCredits, PerTxLimitExceeded, DomainNotAllowed, NotFound, PayloadTooLarge,
            Overloaded, UpstreamError, UpstreamTimeout,
        )(_forwarding(_method))
    )  # fmt: skip
    for _name, _note in _NOTES:
        _view = proxy.header(_name, _note)(_view)
    # HEAD comes with GET; OPTIONS would, too, but is the service's to answer.
    _view.provide_automatic_options = False
    proxy.route(_RULE, methods=[_method])(_view)

for _rule, _methods in ((_RULE, FURTHER_METHODS), (_SHORT_RULE, (*DOCUMENTED_METHODS, *FURTHER_METHODS))):
    flask.Blueprint.add_url_rule(
        proxy,
        _rule,
        f"proxy_others_{len(_methods)}",
        _forwarding("call"),
        methods=list(_methods),
        provide_automatic_options=False,
    )
