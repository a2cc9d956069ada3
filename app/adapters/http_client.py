"""HTTP exchanges with services that the operator configured: JSON nodes, price feeds, the faucet.

Never follows a redirect, keeps a cookie or reads proxy settings; a response is bounded in size and time. A failure
names no address, because an address may contain a key. Requests must be harmless to repeat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

import requests
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.exceptions import HTTPError

from app.adapters.http_session import new_session
from app.core import clock
from app.core.foreign import MalformedResponseError
from app.core.strict_json import parse_response
from app.db.unit_of_work import assert_no_unit
from app.ports.errors import Unreachable

T = TypeVar("T")

_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "purser"}
_FOREIGN = (OSError, HTTPError, HTTPException, ValueError)
"""What requests, urllib3 and http.client raise; the first includes every exception of requests."""


class ResponseTooLargeError(Unreachable):
    """The response exceeds the size limit: a smaller request may help, a repetition does not."""

    def __init__(self) -> None:
        super().__init__("unexpected_answer")


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    body: bytes
    retry_after_seconds: int = 0

    def json(self) -> Any:
        """Return the parsed body, fractions as Decimal. Raises: Unreachable("unexpected_answer")."""
        try:
            return parse_response(self.body)
        except ValueError:
            raise Unreachable("unexpected_answer") from None

    def read(self, read: Callable[[object], T]) -> T:
        """Return what a reader of `foreign` makes of the body. Raises: Unreachable("unexpected_answer")."""
        try:
            return read(self.json())
        except MalformedResponseError:
            raise Unreachable("unexpected_answer") from None


class HttpClient:
    """One session per process; usable from many threads."""

    def __init__(
        self,
        *,
        connect_seconds: float,
        total_seconds: float,
        max_bytes: int = 2**22,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Store the time limits for the connection and the whole exchange, the size limit, and further headers."""
        self._connect_seconds = connect_seconds
        self._total_seconds = total_seconds
        self._max_bytes = max_bytes
        self._headers = headers
        self._sessions: dict[int, requests.Session] = {}

    def get(self, url: str, *, query: Mapping[str, str] | None = None) -> HttpResponse:
        """Return the response, whatever its status. Raises: Unreachable."""
        return self._exchange("GET", f"{url}?{urlencode(query)}" if query else url, {})

    def post(self, url: str, body: bytes, *, repeats: bool = True) -> HttpResponse:
        """Post a JSON text and return the response, whatever its status.

        With `repeats`, once more if the connection breaks, which hides that the first request may have been executed.

        Raises: ResponseTooLargeError; Unreachable, with the reason "not_sent" when no server can have read the
        request.
        """
        return self._exchange("POST", url, {"Content-Type": "application/json"}, body, attempts=2 if repeats else 1)

    def _exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"", *, attempts: int = 2
    ) -> HttpResponse:
        assert_no_unit()
        deadline = time.monotonic() + self._total_seconds
        reason = "not_sent"
        with suppress(*_FOREIGN):
            request = _prepare(method, url, {**_HEADERS, **self._headers, **headers}, body)
            self._session().get_adapter(str(request.url))
            reason = "no_answer"
            response = self._send(request, deadline)
            if response is None and attempts > 1:
                # A persistent connection can be closed by the server just as it is used again. A second attempt that
                # was not sent proves nothing about the first.
                with suppress(Unreachable):
                    response = self._send(request, deadline)
            if response is not None:
                return self._read(response)
        # Here, because an exception that is raised while another is handled refers to it.
        raise Unreachable(reason)

    def _send(self, request: requests.PreparedRequest, deadline: float) -> BaseHTTPResponse | None:
        """Return the response when its head was read, None if the connection broke. Raises: Unreachable, _FOREIGN."""
        left = deadline - time.monotonic()
        timeout = Timeout(connect=min(self._connect_seconds, left), total=left)
        with suppress(requests.ConnectionError):
            response = self._session().send(request, stream=True, timeout=timeout)  # type: ignore[arg-type]
            return response.raw
        return None

    def _session(self) -> requests.Session:
        """Return the session of this process: after a fork, sockets must not be shared with the parent process."""
        process = os.getpid()
        return self._sessions.get(process) or self._sessions.setdefault(process, new_session())

    def _read(self, response: BaseHTTPResponse) -> HttpResponse:
        with closing(response):
            body = response.read(self._max_bytes + 1, decode_content=True)
        if len(body) > self._max_bytes:
            raise ResponseTooLargeError
        return HttpResponse(response.status, body, _retry_after_seconds(response.status, response.headers))


def _prepare(method: str, url: str, headers: Mapping[str, str], body: bytes) -> requests.PreparedRequest:
    """Return the request. Raises: ValueError for an address that is not usable."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    name, _, password = user.partition(":")
    # As bytes, because requests would encode them as Latin-1.
    auth = (unquote_to_bytes(name), unquote_to_bytes(password)) if at else None
    return requests.Request(method, url, headers, data=body, auth=auth).prepare()


def _retry_after_seconds(status: int, headers: Mapping[str, str]) -> int:
    """Return when a server wants the next request, in seconds: 0 if it does not say so.

    Servers without `Retry-After` state when their limit is reset, as seconds or as a time.
    """
    names = ["retry-after"]
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        names += ["ratelimit-reset", "x-ratelimit-reset"]
    found = (clock.seconds_until(headers.get(name, "")) for name in names)
    return next((seconds for seconds in found if seconds is not None), 0)
