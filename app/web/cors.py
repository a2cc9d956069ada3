"""Cross-origin requests to `/v1`, `/mcp` and OAuth: the CORS protocol of the Fetch standard, without credentials.

Errors before a request is read (408, 431) have no such headers: the origin is not known.
"""

from collections.abc import Mapping
from typing import Any

from flask import Flask, Response, request
from werkzeug.wrappers import Response as WsgiResponse

_PREFIXES = ("/v1/", "/mcp", "/.well-known/o", "/oauth/token", "/oauth/register", "/oauth/revoke")
_ANY = "*"
# The wildcard does not include Authorization.
_ALLOWED_HEADERS = "*, Authorization, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"
# Chromium caches a preflight for two hours at most.
_MAX_AGE_SECONDS = "7200"


def install(app: Flask, origins: tuple[str, ...]) -> None:
    """Answer OPTIONS on API routes, and allow these origins to read API responses.

    Forwarded routes forward it, except a preflight.
    """

    def answer_options() -> Response | None:
        # Ahead of all guards: a browser sends no key with a preflight.
        if request.method != "OPTIONS" or not request.path.startswith(_PREFIXES):
            return None
        # Flask adds OPTIONS to the methods of other routes.
        rule = request.url_rule
        methods = None if rule is None or getattr(rule, "provide_automatic_options", True) else rule.methods
        if "OPTIONS" in (methods or ()) and not is_preflight(request.environ):
            return None
        response: Response = app.make_default_options_response()
        if not response.allow:
            return None  # no such route: 404
        response.allow.add("OPTIONS")
        response.status_code = 204
        del response.headers["Content-Type"]
        return response

    def allow_origin(response: Response) -> Response:
        if request.path.startswith(_PREFIXES):
            add_headers(response, request.headers.get("Origin", ""), origins)
            if request.method == "OPTIONS" and response.allow and "Access-Control-Allow-Origin" in response.headers:
                headers = response.headers
                headers["Access-Control-Allow-Methods"] = response.allow.to_header()
                headers["Access-Control-Allow-Headers"] = _ALLOWED_HEADERS
                headers["Access-Control-Max-Age"] = _MAX_AGE_SECONDS
        return response

    app.before_request(answer_options)
    app.after_request(allow_origin)


def is_preflight(environ: Mapping[str, Any]) -> bool:
    """Return whether a browser asks if it may send a request (Fetch standard, CORS-preflight request)."""
    return environ["REQUEST_METHOD"] == "OPTIONS" and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ


def add_headers(response: WsgiResponse, origin: str, origins: tuple[str, ...]) -> None:
    """Allow the origin of a request to read the response, if it is one of `origins`."""
    if not origins:
        return
    headers = response.headers
    if _ANY in origins:
        headers["Access-Control-Allow-Origin"] = _ANY
    else:
        response.vary.add("Origin")
        if origin not in origins:
            return
        headers["Access-Control-Allow-Origin"] = origin
    # Wildcards apply to requests without credentials, the only kind allowed.
    headers["Access-Control-Expose-Headers"] = _ANY
