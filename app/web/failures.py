"""The one mapping from failures to HTTP: JSON with a code for every status ≥ 400, also for routes that do not exist."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import structlog
from flask import Flask, Response, g, jsonify, request
from gunicorn.http.errors import ParseException
from sqlalchemy.exc import InternalError as SqlInternalError
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as SqlTimeoutError
from werkzeug.exceptions import HTTPException
from werkzeug.exceptions import MethodNotAllowed as WerkzeugMethodNotAllowed

from app.core import alarms
from app.core.unit_of_work import IDLE_IN_TRANSACTION, CommitUnknownError
from app.errors import (
    InternalError,
    InvalidInput,
    MethodNotAllowed,
    NotFound,
    Overloaded,
    PayloadTooLarge,
    RateLimited,
    ServiceError,
)
from app.web import callers

_log = structlog.get_logger(__name__)
_BY_STATUS: dict[int, type[ServiceError]] = {
    404: NotFound,
    405: MethodNotAllowed,
    413: PayloadTooLarge,
    429: RateLimited,
    503: Overloaded,
}


def install(app: Flask) -> None:
    """Register the handlers; call it last, so that no extension's handler stands in front."""
    app.register_error_handler(ServiceError, answer)
    app.register_error_handler(HTTPException, _answer_http)
    app.register_error_handler(SqlTimeoutError, _answer_overload)
    app.register_error_handler(OperationalError, _answer_overload)
    app.register_error_handler(CommitUnknownError, _answer_unknown)
    app.register_error_handler(SqlInternalError, _answer_ended_session)
    # Forms are read by the framework, which lets the server's word for a broken body through.
    app.register_error_handler(ParseException, _answer_unreadable)
    app.register_error_handler(Exception, _answer_defect)


def body_of(error: ServiceError) -> dict[str, Any]:
    """Return the JSON body of a failure."""
    body: dict[str, Any] = {"error": error.message, "code": error.code.value, **error.members}
    if error.details:
        body["details"] = error.details
    body["request_id"] = g.get("request_id", "")
    return body


def answer(error: ServiceError) -> Response:
    """Make the response of a failure."""
    response = jsonify(body_of(error))
    response.status_code = error.status
    response.headers.update(error.headers)
    if error.retry_after_seconds is not None:
        response.headers["Retry-After"] = str(max(1, error.retry_after_seconds))
    if error.status == HTTPStatus.UNAUTHORIZED:
        # RFC 9110 §11.6.1: a 401 names a scheme.
        response.headers["WWW-Authenticate"] = 'ApiKey realm="purser"'
    return response


def _answer_http(error: HTTPException) -> Response:
    status = error.code or 500
    if status < HTTPStatus.BAD_REQUEST and error.response is not None:
        return error.get_response()  # type: ignore[return-value]
    failure: ServiceError
    if (let_go := callers.failure_of(error)) is not None:
        failure = let_go
    elif status in _BY_STATUS:
        failure = _BY_STATUS[status]()
    elif status < HTTPStatus.INTERNAL_SERVER_ERROR:
        failure = InvalidInput("The request could not be understood.")
    else:
        failure = InternalError()
    response = answer(failure)
    if isinstance(error, WerkzeugMethodNotAllowed) and error.valid_methods:
        response.headers["Allow"] = ", ".join(error.valid_methods)
    retry_after = error.get_headers()
    for name, value in retry_after:
        if name == "Retry-After":
            response.headers["Retry-After"] = value
    return response


def _answer_unreadable(_error: Exception) -> Response:
    return answer(InvalidInput("The request body could not be read."))


def _answer_overload(_error: Exception) -> Response:
    # No connection was free, a lock was not given in time, or the database is away. Nothing was done, so come back;
    # unless a record was made before, which goes on without this request.
    if g.get("idempotency_bound"):
        return _answer_unknown(_error)
    _log.exception("database_not_available")
    return answer(Overloaded(retry_after_seconds=1))


def _answer_unknown(_error: Exception) -> Response:
    # Nobody is told to come back: a client that does so by itself would do it twice.
    _log.exception("outcome_unknown")
    return answer(
        Overloaded(
            "The database went away, and it is not certain whether this was done. With an Idempotency-Key, send it"
            " again with the same key in a minute; without one, look first.",
            details={"outcome": "unknown"},
        )
    )


def _answer_ended_session(error: Exception) -> Response:
    # PostgreSQL ends a transaction that idles for too long, as one does whose process gets no processor for so long.
    ended = getattr(getattr(error, "orig", None), "sqlstate", None) == IDLE_IN_TRANSACTION
    return _answer_overload(error) if ended else _answer_defect(error)


def _answer_defect(error: Exception) -> Response:
    _log.exception("request_failed")
    alarms.report(error, route=str(request.url_rule))
    return answer(InternalError())
