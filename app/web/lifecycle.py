"""The begin and the end of each request: its id, CORS, its log line and its metrics.

Cross-origin requests to `/v1`, `/mcp` and OAuth follow the CORS protocol of the Fetch standard, without credentials.
Errors before a request is read (408, 431) have no such headers: the origin is not known.
"""

import ipaddress
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import structlog
from flask import Flask, g, request
from flask import Response as FlaskResponse
from werkzeug.wrappers import Response

from app.observability import counters, tracing
from app.web.client_request import ClientRequest

_log = structlog.get_logger(__name__)
_STATUSES = frozenset(HTTPStatus)


def begin(request: ClientRequest) -> None:
    """Bind the id of a request to everything that is logged and answered."""
    g.request_id = request.id
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request.id)
    traceparent = request.environ.get("HTTP_TRACEPARENT", "")
    request.span = tracing.start(request.method, "SERVER", traceparent=traceparent)
    if trace_id := request.span.trace_id if request.span else tracing.trace_id_of(traceparent):
        structlog.contextvars.bind_contextvars(trace_id=trace_id)


def end(request: ClientRequest, response: Response, route: str | None, *, trusts_proxies: bool) -> None:
    """Add the headers of every response, log the request and count it.

    `route` is the pattern, not the path: queries and path segments may hold codes and keys. The log line has the length
    of the body, None for a stream, and a truncated client address.
    """
    for callback in request.on_response:
        callback(response.status_code)
    # A relayed response keeps its upstream's.
    present = {name.lower() for name, _ in response.headers}
    for name, value in (("X-Request-Id", request.id), ("X-Content-Type-Options", "nosniff")):
        if name.lower() not in present:
            response.headers.add(name, value)
    microseconds = (time.perf_counter_ns() - request.started_ns) // 1000
    code, caller = g.get("error_code", ""), g.get("caller")
    _log.info(
        "request",
        method=request.method,
        route=route,
        status=response.status_code,
        code=code,
        account_id=caller.account_id if caller else "",
        client=_truncated(request.remote_addr or ""),
        bytes=response.content_length,
        microseconds=microseconds,
    )
    if (span := request.span) is not None:
        span.set(
            http__request__method=request.method, http__route=route or "", url__scheme=request.scheme,
            http__response__status_code=response.status_code, purser__request_id=request.id,
        )  # fmt: skip
        failed = response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
        error = code or str(response.status_code) if failed else ""
        span.end(name=f"{request.method} {route}" if route else "", error=error)
    # A client may send any method, and a cataloged service any status.
    labels = (request.method, route) if route else ("", "")
    status = str(response.status_code) if response.status_code in _STATUSES else f"{response.status_code // 100}xx"
    counters.REQUESTS.labels(*labels, status, code).inc()
    counters.REQUEST_SECONDS.labels(*labels).observe(microseconds / 1e6)
    if not trusts_proxies and "X-Forwarded-For" in request.headers:
        counters.UNTRUSTED_FORWARDED_HEADERS.inc()


def _truncated(address: str) -> str:
    """Return an address without what identifies one person: the last byte of IPv4, all but the first /48 of IPv6."""
    if ":" not in address:
        return f"{address.rpartition('.')[0]}.0" if address else ""
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 48), strict=False).network_address)
    except ValueError:
        return ""


_PREFIXES = ("/v1/", "/mcp", "/.well-known/o", "/oauth/token", "/oauth/register", "/oauth/revoke")
_ANY = "*"
# The wildcard does not include Authorization.
_ALLOWED_HEADERS = "*, Authorization, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"
# Chromium caches a preflight for two hours at most.
_MAX_AGE_SECONDS = "7200"


def install_cors(app: Flask, origins: tuple[str, ...]) -> None:
    """Answer OPTIONS on API routes, and allow these origins to read API responses.

    Forwarded routes forward it, except a preflight.
    """

    def answer_options() -> FlaskResponse | None:
        # Ahead of all guards: a browser sends no key with a preflight.
        if request.method != "OPTIONS" or not request.path.startswith(_PREFIXES):
            return None
        # Flask adds OPTIONS to the methods of other routes.
        rule = request.url_rule
        methods = None if rule is None or getattr(rule, "provide_automatic_options", True) else rule.methods
        if "OPTIONS" in (methods or ()) and not is_preflight(request.environ):
            return None
        response: FlaskResponse = app.make_default_options_response()
        if not response.allow:
            return None  # no such route: 404
        response.allow.add("OPTIONS")
        response.status_code = 204
        del response.headers["Content-Type"]
        return response

    def allow_origin(response: FlaskResponse) -> FlaskResponse:
        if request.path.startswith(_PREFIXES):
            add_cors_headers(response, request.headers.get("Origin", ""), origins)
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


def add_cors_headers(response: Response, origin: str, origins: tuple[str, ...]) -> None:
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
