"""The WSGI entry of forwarded calls, ahead of Flask's dispatch.

Most requests are forwarded calls, and Flask's dispatch takes a twelfth of the processor time of a chat. Their views
call the same functions, for the documentation and for requests that are not written plainly.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from werkzeug.wrappers import Response

from app.forwarding.views import DOCUMENTED_METHODS, UNDOCUMENTED_METHODS
from app.state import Application
from app.web import error_responses, lifecycle
from app.web.blueprint import set_cache_headers
from app.web.client_request import ClientRequest, request_line_target

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

RequestCheck: TypeAlias = Callable[[ClientRequest], None]
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

    def __init__(self, app: Application, routes: Sequence[ForwardedRoute], checks: Sequence[RequestCheck]) -> None:
        self._app = app
        self._dispatch: WSGIApplication = app.wsgi_app
        self._routes = {route.prefix: route for route in routes}
        prefixes = "|".join(map(re.escape, self._routes))
        # A name that needs no decoding, and a rest, which may be empty.
        self._target = re.compile(rf"({prefixes})/([A-Za-z0-9_-]{{1,64}})/", re.ASCII)
        self._checks = checks

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        found = self._target.match(request_line_target(environ))
        if found is None or environ["REQUEST_METHOD"] not in _METHODS or lifecycle.is_preflight(environ):
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
        settings = self._app.state.settings
        rule = route.prefix + route.rule
        lifecycle.begin(request)
        response: Response
        try:
            for check in self._checks:
                check(request)
            response = route.serve(request, name)
        except Exception as error:
            response = error_responses.response_of(error, route=rule)
        set_cache_headers(response)
        lifecycle.add_cors_headers(response, request.headers.get("Origin", ""), settings.cors_allowed_origins)
        lifecycle.end(request, response, rule, trusts_proxies=settings.trusted_proxy_hops > 0)
        return response
