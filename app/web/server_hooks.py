"""The server's hooks, and the mapping from its errors to errors of the API."""

import json
from http import HTTPStatus

from app.errors import HeadTooLarge, InternalError, InvalidInput, Overloaded, RequestTimeout, ServiceError
from app.observability import counters
from server.client_socket import ConnectionShed
from server.hooks import Hooks, ShedReason

_RETRY_SECONDS = 2
_ERRORS = {400: InvalidInput, 408: RequestTimeout, 431: HeadTooLarge, 500: InternalError}


class ServerHooks(Hooks):
    """The API's error body for requests that do not reach the application, and its counters."""

    def error_body(self, status: HTTPStatus, message: str | None, request_id: str) -> bytes:
        """Return the body of an error of the API; count the request."""
        error = _ERRORS[status](message)
        counters.REQUESTS.labels("", "", str(error.status), error.code).inc()
        members = {"error": error.message, "code": error.code, "request_id": request_id}
        return json.dumps(members).encode()

    def count_shed(self, reason: ShedReason) -> None:
        counters.CONNECTIONS_SHED.labels(reason.value).inc()


def client_error_of(error: BaseException) -> ServiceError | None:
    """Return the error for the client if its connection was shed; None for any other exception."""
    # werkzeug raises its own ClientDisconnected while handling ours.
    for candidate in (error, error.__context__):
        if isinstance(candidate, ConnectionShed):
            if candidate.reason is not ShedReason.BODY_MEMORY_EXHAUSTED:
                return RequestTimeout()
            message = "The service has no memory for another request body at the moment; nothing was done."
            return Overloaded(message, retry_after_seconds=_RETRY_SECONDS)
    return RequestTimeout() if isinstance(error, TimeoutError) else None
