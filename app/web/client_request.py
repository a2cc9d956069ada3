"""The request of a client, from its begin to its end: what functions take instead of Flask's global `request`.

Its end writes the log line and the metrics. Cross-origin requests to `/v1`, `/mcp` and OAuth follow the CORS protocol
of the Fetch standard, without credentials. Errors before a request is read (408, 431) have no such headers: the origin
is not known.
"""

import hashlib
import ipaddress
import re
import time
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import lru_cache
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

import flask
import structlog
from flask import Flask, g, request
from flask import Response as FlaskResponse
from werkzeug.datastructures import EnvironHeaders
from werkzeug.wrappers import Response

from app import signing
from app.core.identifiers import new_ordered_id
from app.core.ip_ranges import is_loopback
from app.core.redaction import redact_keys
from app.errors import PROVABLE, InvalidInput, Maintenance, RouteNotAllowed
from app.observability import counters, telemetry
from app.observability.telemetry import Span
from app.signing import Statement
from app.state import app_state
from server.client_socket import ClientSocket, client_socket_of

SIGNATURE_HEADER = "X-Gateway-Signature"
"""With it, a service verifies that this one has sent a request."""
RAW_BODY = "purser.body"
"""Where the environment of a request has its body, once it was read."""
# Without the terms of another payment.
_REASON = ("error", "code", "details", "request_id")
_PAID = ("/v1/gateway/", "/v1/proxy/", "/v1/x402/services/")
# Calls of MCP's tools are checked as the requests that they make.
_GOES_ON = ("/v1/platform/", "/admin", "/mcp", "/oauth/token")
_UNPREFIXED = frozenset({"CONTENT_TYPE", "CONTENT_LENGTH"})
_ABSOLUTE = re.compile(r"\A[A-Za-z][A-Za-z0-9+.-]*://[^/?#]*")
# A name or an IP address, and a port; urlsplit ignores what follows a port that is none.
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{0,5})?", re.ASCII)


class RequestHeaders(EnvironHeaders):
    """The headers of a request; unlike the base class, a look-up of an absent one raises no exception internally."""

    def get(self, key: str, default: Any = None, type: Callable[[str], Any] | None = None) -> Any:  # type: ignore[override] # noqa: A002 - the library's own signature
        found = self.environ.get(_variable(key))
        return default if found is None else found if type is None else super().get(key, default, type)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and _variable(key) in self.environ

    def __iter__(self) -> Iterator[tuple[str, str]]:
        sent = [
            (_name(variable), value) for variable, value in self.environ.items() if value or variable not in _UNPREFIXED
        ]
        return iter([(name, value) for name, value in sent if name])


class ClientRequest(flask.Request):
    """One request, and what is noted about it until its response is sent."""

    def __init__(self, *arguments: object, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.headers = RequestHeaders(self.environ)
        self.id = new_ordered_id()
        self.started_ns = time.perf_counter_ns()
        self.span: Span | None = None
        self.on_response: list[Callable[[int], None]] = []
        """Called with the status of the response, before it is sent."""
        self.derives_idempotency_keys = False
        """Whether an idempotency key that was not sent is derived from the body."""
        self.master_caller: Any = None
        """The master key that a page of the console acts for; no header says so."""
        self.is_counted = False
        """Whether a rate limit has counted this request, or the one that it comes in place of."""
        self.inner_status: int | None = None
        """The status of what a message asked for, if its own response does not show it."""
        self.sdk_keys: list[str] | None = None
        """The API keys in it, once they were looked for (`app.identity.guards`)."""
        self.connection: ClientSocket | None = client_socket_of(self.environ)
        """The client's connection; None in tests, which have none."""

    @property
    def raw_target(self) -> str:
        """Path and query as they were sent; `path` is decoded."""
        line = request_line_target(self.environ)
        return _ABSOLUTE.sub("", line, count=1) if not line.startswith("/") else line


@lru_cache(maxsize=1024)
def _variable(name: str) -> str:
    variable = name.upper().replace("-", "_")
    return variable if variable in _UNPREFIXED else f"HTTP_{variable}"


@lru_cache(maxsize=1024)
def _name(variable: str) -> str:
    """Return the header in a variable of the WSGI environment; nothing if that is no header."""
    name = variable if variable in _UNPREFIXED else variable.removeprefix("HTTP_")
    is_header = _variable(name) == variable
    return name.replace("_", "-").title() if is_header else ""


def request_line_target(environ: Mapping[str, Any]) -> str:
    """Return the target in the request line, which servers give one name or the other."""
    target: str = environ.get("REQUEST_URI") or environ.get("RAW_URI") or ""
    return target


def current_request() -> ClientRequest:
    return cast("ClientRequest", flask.request._get_current_object())  # type: ignore[attr-defined]  # noqa: SLF001 - the documented way


def wait_seconds() -> Decimal | None:
    """Return how long the client prefers to wait for an outcome: 0 to 25 seconds, None without a valid preference."""
    preference = ",".join(current_request().headers.getlist("Prefer"))
    for part in preference.split(","):
        name, _, value = part.strip().partition("=")
        if name.strip().lower() == "respond-async":
            return Decimal(0)
        if name.strip().lower() == "wait" and re.fullmatch(r"[0-9]{1,6}", value.strip(), re.ASCII):
            return Decimal(min(int(value), 25))
    return None


def check(request: ClientRequest) -> None:
    """Refuse another host in the sandbox, and a loop; see `check_maintenance`. Raises: RouteNotAllowed, InvalidInput.

    A web page can make its own host name resolve to 127.0.0.1 (DNS rebinding). Browsers then treat the sandbox as the
    same origin and let the page read every response; only the Host header distinguishes such a request.
    """
    settings, sent = app_state().settings, request.environ.get("HTTP_HOST", "")
    # Browsers always send it; HTTP/1.0 clients need not.
    if settings.is_sandbox and sent and not is_allowed_host(sent, urlsplit(settings.public_url).hostname):
        raise RouteNotAllowed(
            "This sandbox accepts only requests with the Host 127.0.0.1, localhost or the host of BASE_URL."
            " Use one of them, or set BASE_URL to this address (and SANDBOX_PUBLIC=1)."
        )
    check_maintenance(request)
    if SIGNATURE_HEADER in request.headers:
        # It was sent to a service that points to this one.
        raise InvalidInput(
            f"This request was sent by the proxy itself ({SIGNATURE_HEADER} is set): it must not call itself."
        )


def check_maintenance(request: ClientRequest) -> None:
    """Refuse, with MAINTENANCE, what changes something or costs credits; operators go on. Raises: Maintenance."""
    is_read = request.method in {"GET", "HEAD", "OPTIONS"} and not request.path.startswith(_PAID)
    if app_state().settings.maintenance and not is_read and not request.path.startswith(_GOES_ON):
        raise Maintenance(retry_after_seconds=60)


def is_allowed_host(host_header: str, own_host: str | None) -> bool:
    found = _HOST.fullmatch(host_header)
    host = found[1].strip("[]").lower() if found else None
    return host is not None and (host == own_host or is_loopback(host))


_log = structlog.get_logger(__name__)
_STATUSES = frozenset(HTTPStatus)


def begin(request: ClientRequest) -> None:
    """Bind the id of a request to everything that is logged and answered."""
    g.request_id = request.id
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(request_id=request.id)
    traceparent = request.environ.get("HTTP_TRACEPARENT", "")
    request.span = telemetry.start_span(request.method, "SERVER", traceparent=traceparent)
    if trace_id := request.span.trace_id if request.span else telemetry.trace_id_of(traceparent):
        structlog.contextvars.bind_contextvars(trace_id=trace_id)


def end(request: ClientRequest, response: Response, route: str | None) -> None:
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
    if code in PROVABLE and response.status_code >= HTTPStatus.BAD_REQUEST:
        response.headers.update(signing.header(_refusal_receipt(request, response)))
    _log.info(
        "request", method=request.method, route=route, status=response.status_code, code=code,
        account_id=caller.account_id if caller else "", client=_truncated(request.remote_addr or ""),
        bytes=response.content_length, microseconds=microseconds,
    )  # fmt: skip
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
    if not app_state().settings.trusted_proxy_hops and "X-Forwarded-For" in request.headers:
        counters.UNTRUSTED_FORWARDED_HEADERS.inc()


def _refusal_receipt(request: ClientRequest, response: Response) -> str | None:
    """Sign a refusal: the request, its payment and key, and the error of the response."""
    caller, headers = g.get("caller"), request.headers
    payment = headers.get("Authorization", "")
    if not payment.lower().startswith("payment "):
        payment = headers.get("PAYMENT-SIGNATURE") or headers.get("X-Payment", "")
    sent = {"body": request.environ.get(RAW_BODY), "payment": payment.encode()}
    hashes = {f"{name}_sha256": hashlib.sha256(value).hexdigest() for name, value in sent.items() if value}
    asked = {"method": request.method, "path": redact_keys(request.path), **hashes}
    answer: Mapping[str, Any] = response.json or {}
    refused = {name: answer[name] for name in _REASON if name in answer}
    agent_id = caller.agent_id if caller else None
    return signing.sign_own(Statement.REFUSAL, agent_id=agent_id, request=asked, refusal=refused)


def _truncated(address: str) -> str:
    """Return an address without what identifies one person: the last byte of IPv4, all but the first /48 of IPv6."""
    if ":" not in address:
        return f"{address.rpartition('.')[0]}.0" if address else ""
    try:
        return str(ipaddress.ip_network((address.partition("%")[0], 48), strict=False).network_address)
    except ValueError:
        return ""


_PREFIXES = ("/v1/", "/mcp", "/discovery/", "/.well-known/", "/oauth/token", "/oauth/register", "/oauth/revoke")
_ANY = "*"
# The wildcard does not include Authorization.
_ALLOWED_HEADERS = "*, Authorization, MCP-Protocol-Version, Mcp-Method, Mcp-Name, Mcp-Session-Id"


def install_cors(app: Flask) -> None:
    """Answer OPTIONS on API routes, and allow CORS_ALLOWED_ORIGINS to read API responses.

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
            add_cors_headers(response, request)
            if request.method == "OPTIONS" and response.allow and "Access-Control-Allow-Origin" in response.headers:
                headers = response.headers
                headers["Access-Control-Allow-Methods"] = response.allow.to_header()
                headers["Access-Control-Allow-Headers"] = _ALLOWED_HEADERS
                headers["Access-Control-Max-Age"] = "7200"  # Chromium caches a preflight for two hours at most
        return response

    app.before_request(answer_options)
    app.after_request(allow_origin)


def is_preflight(environ: Mapping[str, Any]) -> bool:
    """Return whether a browser asks if it may send a request (Fetch standard, CORS-preflight request)."""
    return environ["REQUEST_METHOD"] == "OPTIONS" and "HTTP_ACCESS_CONTROL_REQUEST_METHOD" in environ


def add_cors_headers(response: Response, request: flask.Request) -> None:
    """Allow the origin of a request to read the response, if it is one of CORS_ALLOWED_ORIGINS."""
    origins, origin = app_state().settings.cors_allowed_origins, request.headers.get("Origin", "")
    if origins and _ANY not in origins:
        response.vary.add("Origin")
    if _ANY in origins or origin in origins:
        response.headers["Access-Control-Allow-Origin"] = _ANY if _ANY in origins else origin
        # Wildcards apply to requests without credentials, the only kind allowed.
        response.headers["Access-Control-Expose-Headers"] = _ANY
