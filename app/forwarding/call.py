"""Every forwarded call: its WSGI entry, its body, its permit, its exchange with the upstream, its price.

The entry is ahead of Flask's dispatch: most requests are forwarded calls, and the dispatch takes a twelfth of the
processor time of a chat. Views call the same functions, for the documentation and for requests that are not written
plainly.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import flask
from werkzeug.routing import BaseConverter
from werkzeug.wrappers import Response

from app.capacity.limiter import Permit
from app.core.request_target import RequestTarget, parse_target
from app.errors import ServiceError
from app.forwarding import relay
from app.forwarding.relay import ForwardingOptions
from app.payments.paid_call import PaidCall
from app.ports.errors import PortError
from app.ports.upstream import UpstreamRequest
from app.state import Application, app_state
from app.web import client_request, error_responses, request_bodies
from app.web.blueprint import Blueprint, documentation_section, set_cache_headers
from app.web.client_request import ClientRequest, request_line_target
from app.web.openapi import FREE_QUERY, response_headers
from app.web.schemas import Schema

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


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
            200, answer, description="The upstream's response.",
            headers=response_headers(*CALL_HEADERS, *further_response_headers),
        )(blueprint.raises(*errors)(view(method)))  # fmt: skip
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
            blueprint, other_rule, f"{name}_others_{number}", view("call"), methods=list(methods),
            provide_automatic_options=False,
        )  # fmt: skip


_METHODS = frozenset({*DOCUMENTED_METHODS, *UNDOCUMENTED_METHODS, "HEAD"} - {"TRACE"})


@dataclass(frozen=True)
class ForwardedRoute:
    """What is served below a prefix: the first segment of the path names the upstream, the rest is the upstream's."""

    prefix: str
    rule: str
    accepts: Callable[[str], bool]
    """Whether a name is one of the upstreams; a request for another is dispatched by Flask."""
    serve: Callable[[ClientRequest, str], Response]


class ForwardingEntry:
    """A WSGI application that serves the forwarded routes, and passes all other requests on to the application."""

    def __init__(self, app: Application, routes: Sequence[ForwardedRoute]) -> None:
        self._app = app
        self._dispatch: WSGIApplication = app.wsgi_app
        self._routes = {route.prefix: route for route in routes}
        prefixes = "|".join(map(re.escape, self._routes))
        # A name that needs no decoding, and a rest, which may be empty.
        self._target = re.compile(rf"({prefixes})/([A-Za-z0-9_-]{{1,64}})/", re.ASCII)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found = self._target.match(request_line_target(environ))
        if found is None or environ["REQUEST_METHOD"] not in _METHODS or client_request.is_preflight(environ):
            return self._dispatch(environ, start_response)
        prefix, name = found.groups()
        route = self._routes[prefix]
        if not route.accepts(name):
            return self._dispatch(environ, start_response)
        request = ClientRequest(environ)
        with self._app.app_context():
            response = self._respond(request, route, name)
        return response(environ, start_response)

    def _respond(self, request: ClientRequest, route: ForwardedRoute, name: str) -> Response:
        rule = route.prefix + route.rule
        client_request.begin(request)
        response: Response
        try:
            client_request.check(request)
            response = route.serve(request, name)
        except Exception as error:
            response = error_responses.response_of(error, route=rule)
        set_cache_headers(response)
        client_request.add_cors_headers(response, request)
        client_request.end(request, response, rule)
        return response


MAX_BODY_BYTES = 32 * 2**20
_KEY = "Idempotency-Key"


def decoded_body(request: ClientRequest, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return a request's body without its Content-Encoding. Raises: what `decoded_body` does."""
    request.max_content_length = max_bytes
    return request_bodies.decoded_body(request)


def idempotency_key(request: ClientRequest, *scope: str) -> dict[str, str]:
    """Return the header for an upstream: one key of two clients must not be one request there."""
    key = request.headers.get(_KEY)
    if not key:
        return {}
    scoped = hashlib.sha256("\n".join((*scope, key)).encode()).hexdigest()
    return {_KEY: f"purser-{scoped[:48]}"}


def forward(request: ClientRequest, outgoing: UpstreamRequest, paid: PaidCall, options: ForwardingOptions) -> Response:
    """Make the call for a request and relay its response. Raises: Overloaded, UpstreamError, UpstreamTimeout."""
    # A request makes one call, so the log of usage can be searched for it.
    paid.id = request.id
    permit = app_state().forwarding_limiter.acquire(options.account_id, options.quotas)
    try:
        if (connection := request.connection) is not None:
            permit.transfer_to(connection)
        paid_request = paid.begin(outgoing)
        request_bodies.release_decoded(request)
        return _exchange(request, paid_request, paid, options, permit)
    except BaseException:
        permit.close()
        raise


def _exchange(
    request: ClientRequest, outgoing: UpstreamRequest, paid: PaidCall, options: ForwardingOptions, permit: Permit
) -> Response:
    try:
        incoming = options.upstream.send(paid.start_span(outgoing, request.span))
        if incoming.status >= HTTPStatus.BAD_REQUEST and options.screen_error is not None:
            incoming = options.screen_error(incoming)
    except PortError as error:
        paid.on_no_response(is_upstream_failure=True)
        raise relay.upstream_error_of(error) from None
    except BaseException:
        paid.on_no_response(is_upstream_failure=False)
        raise
    try:
        paid.on_response_head(incoming)
        return relay.relay(request, incoming, paid, permit, options)
    except ServiceError:
        raise  # the relay has ended the call
    except BaseException:
        incoming.close()
        paid.on_no_response(is_upstream_failure=False)
        raise
