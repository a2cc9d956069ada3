"""The views of forwarded calls: for the documentation, and for requests that `ForwardingEntry` leaves to Flask."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import flask
from werkzeug.routing import BaseConverter
from werkzeug.wrappers import Response

from app.core.request_target import RequestTarget, parse_target
from app.errors import ServiceError
from app.web.blueprint import Blueprint, documentation_section
from app.web.client_request import ClientRequest
from app.web.openapi import FREE_QUERY, response_headers
from app.web.schemas import Schema

DOCUMENTED_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
# Forwarded like those, but not expressible or not useful in an OpenAPI document. Routes need a list; methods in neither
# get a 405: CONNECT, which asks for a tunnel, and unregistered ones.
UNDOCUMENTED_METHODS = (
    "OPTIONS", "TRACE", "QUERY", "SEARCH", "REPORT", "PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK",
    "PURGE", "LINK", "UNLINK",
)  # fmt: skip
CALL_HEADERS = ("X-Gateway-Request-Id", "X-Cost-Usd", "X-Credits-Remaining", "X-Budget-Remaining-Usd")
PAYMENT_CHAIN = {
    "X-Payment-Chain": "The chain of the transaction with the hash in `X-Payment`: base, ethereum or solana."
}


class RestConverter(BaseConverter):
    """The rest of a path, which may be empty: `<rest:path>`."""

    regex = ".*"
    part_isolating = False


def target_under_prefix(request: ClientRequest, *prefix: str) -> RequestTarget:
    """Return what a request asks for below a prefix of segments. Raises: what `parse_target` does."""
    return parse_target(request.raw_target, request.environ["QUERY_STRING"], *prefix)


def add_views(
    blueprint: Blueprint,
    rule: str,
    forward: Callable[[str], Response],
    *,
    name: str,
    text: str,
    answer: type[Schema],
    errors: Iterable[type[ServiceError]],
    request_headers: Mapping[str, str],
    bodies: Mapping[str, Any],
    further_response_headers: Iterable[str] = (),
    others: Mapping[str, Iterable[str]],
) -> None:
    """Add a documented view for each usual method; `others` has the methods that are only forwarded, by rule."""

    def view(method: str) -> Callable[..., Response]:
        def call(path: str = "", **upstream: str) -> Response:
            del path  # read undecoded from the request line instead
            return forward(*upstream.values())

        call.__name__ = f"{name}_{method.lower()}"
        call.__doc__ = f"Forward a {method} to {text}"
        return call

    for method in DOCUMENTED_METHODS:
        documented = blueprint.response(
            200,
            answer,
            description="The upstream's response.",
            headers=response_headers(*CALL_HEADERS, *further_response_headers),
        )(blueprint.raises(*errors)(view(method)))
        for header, meaning in request_headers.items():
            blueprint.header(header, meaning)(documented)
        documentation_section(documented, "arguments").setdefault("parameters", []).append(dict(FREE_QUERY))
        if method in {"POST", "PUT", "PATCH"}:
            documentation_section(documented, "manual_doc")["requestBody"] = {"content": dict(bodies)}
        # HEAD is included in GET.
        documented.provide_automatic_options = False
        blueprint.route(rule, methods=[method])(documented)
    for number, (other_rule, methods) in enumerate(others.items()):
        flask.Blueprint.add_url_rule(
            blueprint,
            other_rule,
            f"{name}_others_{number}",
            view("call"),
            methods=list(methods),
            provide_automatic_options=False,
        )
