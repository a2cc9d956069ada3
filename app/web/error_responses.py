"""The mapping from errors to HTTP: JSON with a code for every status ≥ 400, including for routes that do not exist.

Outside the API, a client that prefers HTML gets a page with the same status and headers.
"""

import json
import resource
import tomllib
from http import HTTPStatus
from pathlib import Path
from typing import Any

import structlog
from flask import Flask, Response, g, jsonify, render_template, request
from sqlalchemy import Engine, QueuePool
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WerkzeugMethodNotAllowed

from app import errors
from app.db.unit_of_work import CommitUnknownError, is_unavailable
from app.errors import InvalidInput, Overloaded, RequestTimeout, ServiceError
from app.observability import counters, telemetry
from app.state import app_state
from app.version import VERSION
from server.client_socket import ConnectionShed
from server.hooks import Hooks, ShedReason

_log = structlog.get_logger(__name__)
_BY_STATUS: dict[int, type[errors.ServiceError]] = {
    400: errors.InvalidInput, 404: errors.NotFound, 405: errors.MethodNotAllowed, 408: errors.RequestTimeout,
    413: errors.PayloadTooLarge, 429: errors.RateLimited, 431: errors.HeadTooLarge, 500: errors.InternalError,
    503: errors.Overloaded,
}  # fmt: skip
_PAGES = tomllib.loads(Path(__file__).with_name("error_pages.toml").read_text("utf-8"))
_PAGE_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; "
    "form-action 'none'; frame-ancestors 'none'; base-uri 'none'; require-trusted-types-for 'script'",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
}


def install(app: Flask) -> None:
    """Register the handler; called last, so that no handler of an extension precedes it."""

    def handle(error: Exception) -> Response:
        response, accepted = response_of(error, route=str(request.url_rule)), request.accept_mimetypes
        if request.path.startswith("/v1/") or str(response.status_code) not in _PAGES:
            return response
        response.vary.add("Accept")
        return as_page(response) if accepted["text/html"] > accepted["application/json"] else response

    # flask-smorest has registered one for HTTPException, which would precede a handler of Exception.
    app.register_error_handler(HTTPException, handle)
    app.register_error_handler(Exception, handle)


def as_page(response: Response) -> Response:
    """Replace the body of an error by a page for people, which needs no database; a redirect is returned as it is."""
    if response.status_code < HTTPStatus.BAD_REQUEST:
        return response
    texts = _PAGES.get(str(response.status_code), _PAGES["other"])
    request_id = g.get("request_id") if response.status_code >= HTTPStatus.INTERNAL_SERVER_ERROR else ""
    context = {"settings": app_state().settings, "version": VERSION, "request_id": request_id}
    response.set_data(render_template("owner/error.html", **texts, **context))
    response.mimetype = "text/html"
    response.headers.update(_PAGE_HEADERS)
    return response


def response_of(error: Exception, *, route: str) -> Response:
    if isinstance(error, errors.ServiceError):
        return error_response(error)
    if isinstance(error, HTTPException):
        return _http_exception(error)
    if isinstance(error, CommitUnknownError):
        # No Retry-After: a client that retries automatically would do it twice.
        _log.exception("outcome_unknown")
        message = (
            "The connection to the database was lost, and it is unknown whether this was done. If you sent an"
            " Idempotency-Key, repeat the request with the same key in a minute; if not, check its result first."
        )
        return error_response(errors.Overloaded(message, details={"outcome": "unknown"}))
    if is_unavailable(error):
        # No connection was free, a lock was not granted in time, or the database is away: nothing was done.
        _log.exception("database_unavailable")
        return error_response(errors.Overloaded(retry_after_seconds=1))
    _log.exception("request_failed")
    telemetry.report(error, route=route)
    return error_response(errors.InternalError())


def error_body(error: errors.ServiceError) -> dict[str, Any]:
    body: dict[str, Any] = {"error": error.message, "code": error.code, **error.members}
    if error.details:
        body["details"] = error.details
    body["request_id"] = g.get("request_id", "")
    return body


def error_response(error: errors.ServiceError) -> Response:
    g.error_code = error.code
    response = jsonify(error_body(error))
    response.status_code = error.status
    response.headers.update(error.headers)
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(max(1, error.retry_after_seconds))
    if error.status == HTTPStatus.UNAUTHORIZED:
        # RFC 9110 §11.6.1: a 401 names a scheme.
        response.headers["WWW-Authenticate"] = 'ApiKey realm="purser"'
    return response


def _http_exception(error: HTTPException) -> Response:
    status = error.code or 500
    if status < HTTPStatus.BAD_REQUEST and error.response is not None:
        return error.get_response()  # type: ignore[return-value]
    kind = _BY_STATUS.get(status, InvalidInput if status < HTTPStatus.INTERNAL_SERVER_ERROR else errors.InternalError)
    message = "The request could not be understood." if kind is InvalidInput else None
    response = error_response(client_error_of(error) or kind(message))
    if isinstance(error, WerkzeugMethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(error.valid_methods)
    for name, value in error.get_headers():
        if name == "Retry-After":
            response.headers["Retry-After"] = value
    return response


class ServerHooks(Hooks):
    """The API's error body for requests that do not reach the application, and its counters."""

    def error_body(self, status: HTTPStatus, message: str | None, request_id: str) -> bytes:
        """Return the body of an error of the API; count the request."""
        error = _BY_STATUS[status](message)
        counters.REQUESTS.labels("", "", str(error.status), error.code).inc()
        members = {"error": error.message, "code": error.code, "request_id": request_id}
        return json.dumps(members).encode()

    def count_shed(self, reason: ShedReason) -> None:
        counters.CONNECTIONS_SHED.labels(reason.value).inc()

    def measure(self, engine: Engine) -> None:
        """Observe what this process uses of its pools and of the database's, and its memory."""
        database: Any = engine.pool.checkedout() / engine.pool.size() if isinstance(engine.pool, QueuePool) else 0
        used = {"threads": self.threads.used, "body_memory": self.bodies.used, "database_connections": database}
        for name, share in used.items():
            counters.PROCESS_USE.labels(name).observe(share)
        if (statm := Path("/proc/self/statm")).exists():  # on Linux
            counters.PROCESS_MEMORY.observe(int(statm.read_text().split()[1]) * resource.getpagesize())


def client_error_of(error: BaseException) -> ServiceError | None:
    """Return the error for the client if its connection was shed; None for any other exception."""
    # werkzeug raises its own ClientDisconnected while handling ours.
    for candidate in (error, error.__context__):
        if isinstance(candidate, ConnectionShed):
            if candidate.reason is not ShedReason.BODY_MEMORY_EXHAUSTED:
                return RequestTimeout()
            message = "The service has no memory for another request body at the moment; nothing was done."
            return Overloaded(message, retry_after_seconds=2)
    return RequestTimeout() if isinstance(error, TimeoutError) else None
