"""HTTP exchanges with a service that limits requests: within its limit, repeated after a refusal, in bounded time."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar

import structlog

from app.adapters.http_client import HttpClient, HttpResponse
from app.core.foreign import MalformedResponseError
from app.errors import RateLimited
from app.ports.errors import PortError, Rejected, Unreachable

AwaitPermit = Callable[[float], None]
"""Waits until a request is within the limit of all processes, at most this many seconds. Raises: RateLimited."""
RATE_LIMITED = "rate_limited"
_MAX_ATTEMPTS = 3
_MAX_CLOSED_SECONDS = 7_200
"""The longest window of a documented limit: a wrong header must not close a service until the process ends."""
_WAIT_SECONDS = 8.0
"""Quotes are asked for while a client waits, and a wait uses one of the server's threads."""
T = TypeVar("T")
_log = structlog.get_logger(__name__)


def unlimited(_seconds: float) -> None:
    """Return immediately: the service has no limit."""


@dataclass(frozen=True, slots=True)
class ServiceAccess:
    """The operator's plan at a service: the key, if there is one, and the limit of requests."""

    api_key: str = field(default="", repr=False)
    await_permit: AwaitPermit = unlimited

    def headers(self, name: str) -> Mapping[str, str]:
        return {name: self.api_key} if self.api_key else {}


KEYLESS = ServiceAccess()
"""Without a key and without a limit, as stand-ins are used."""


class RateLimitedClient(HttpClient):
    """An HTTP client of one service; "rate_limited" has the time after which to try again."""

    def __init__(
        self,
        service: str,
        access: ServiceAccess,
        key_header: str = "",
        *,
        total_seconds: float,
        wait_seconds: float = _WAIT_SECONDS,
    ) -> None:
        headers = access.headers(key_header)
        super().__init__(connect_seconds=3.0, total_seconds=total_seconds, headers=headers)
        self._service = service
        self._await_permit = access.await_permit
        self._wait_seconds = wait_seconds
        self._closed_until = 0.0

    def _exchange(self, method: str, url: str, body: bytes = b"", *, attempts: int = 2) -> HttpResponse:
        deadline = time.monotonic() + self._wait_seconds
        for attempt in range(1, _MAX_ATTEMPTS + 1):
            self._wait(deadline)
            response = super()._exchange(method, url, body, attempts=attempts)
            is_limited = response.status == HTTPStatus.TOO_MANY_REQUESTS
            if not is_limited and not (
                response.status == HTTPStatus.SERVICE_UNAVAILABLE and response.retry_after_seconds
            ):
                return response
            # For all threads: more requests would only extend the refusal.
            self._closed_until = time.monotonic() + min(response.retry_after_seconds or attempt, _MAX_CLOSED_SECONDS)
            _log.warning("service_limits_requests", service=self._service, status=response.status)
        raise self._limited(self._closed_until - time.monotonic())

    def _wait(self, deadline: float) -> None:
        """Wait until the service accepts requests, and for a permit. Raises: Unreachable("rate_limited")."""
        while (delay := self._closed_until - time.monotonic()) > 0:
            if time.monotonic() + delay > deadline:
                raise self._limited(delay)
            time.sleep(delay)
        try:
            self._await_permit(max(0.0, deadline - time.monotonic()))
        except RateLimited as refusal:
            raise self._limited(refusal.retry_after_seconds or 1) from None

    def _limited(self, seconds: float) -> Unreachable:
        details = {"service": self._service, "retry_after_seconds": str(max(1, math.ceil(seconds)))}
        return Unreachable(RATE_LIMITED, details=details)


def no_quote(failure: PortError) -> Rejected:
    reason = "quote_rate_limited" if failure.reason == RATE_LIMITED else "quote_unavailable"
    return Rejected(reason, details=failure.details)


def read_quote(
    service: str,
    request: Callable[[], HttpResponse],
    parse: Callable[[Any], T],
    refusal_reason: Callable[[int, object], str],
) -> T:
    """Request a quote and parse it; `refusal_reason` names an error by status and body. Raises: Rejected."""
    try:
        response = request()
        body = response.json()
    except Unreachable as failure:
        _log.warning("quote_service_unreachable", service=service, reason=failure.reason)
        raise no_quote(failure) from None
    if response.status != HTTPStatus.OK:
        _log.warning("quote_refused", service=service, status=response.status)
        details = {"service": service, "http_status": str(response.status)}
        raise Rejected(refusal_reason(response.status, body), details=details)
    try:
        return parse(body)
    except MalformedResponseError:
        _log.warning("quote_invalid", service=service)
        raise Rejected("quote_unavailable") from None
