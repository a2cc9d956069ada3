"""HTTP exchanges with services that the operator configured: JSON nodes, price feeds, the faucet.

Never follows a redirect, keeps a cookie or reads proxy settings; a response is bounded in size and time. A failure
names no address, because an address may contain a key. Requests must be harmless to repeat.
"""

from __future__ import annotations

import base64
import math
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlencode, urlsplit

from app.adapters.upstream_http.exchange import HttpUpstream, HttpUpstreamResponse
from app.core import clock
from app.core.content_decoding import IdentityDecoder, UndecodableResponse, decoder_for
from app.core.strict_json import parse_response
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.upstream import UpstreamRequest

_IDLE_SECONDS = 300.0
"""A connection that the server closed in the meantime costs a second attempt, not a failure."""
_MAX_TIME_DIGITS = 13
_MIN_TIMESTAMP = 10**9
"""Larger numbers are times since 1970, not seconds from now."""
_MS_PER_SECOND = 1000
_HEADERS = {"Accept": "application/json", "Accept-Encoding": "gzip, deflate", "User-Agent": "purser"}


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


class HttpClient:
    """One connection pool per process; usable from many threads."""

    def __init__(
        self,
        *,
        connect_seconds: float,
        total_seconds: float,
        max_bytes: int = 2**22,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Store the time limits for the connection and the whole response, the size limit, and further headers."""
        self._upstream = HttpUpstream(
            connect_seconds=connect_seconds, read_seconds=total_seconds, idle_seconds=_IDLE_SECONDS
        )
        self._max_bytes = max_bytes
        self._headers = headers
        weakref.finalize(self, self._upstream.close)

    def get(self, url: str, *, query: Mapping[str, str] | None = None) -> HttpResponse:
        """Return the response, whatever its status. Raises: Unreachable."""
        return self._exchange("GET", f"{url}?{urlencode(query)}" if query else url, {})

    def post(self, url: str, body: bytes) -> HttpResponse:
        """Post a JSON text and return the response, whatever its status.

        Raises: ResponseTooLargeError; Unreachable, with the reason "not_sent" when no server can have read the
        request.
        """
        return self._exchange("POST", url, {"Content-Type": "application/json"}, body)

    def _exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
        may_be_received = False
        try:
            request = _request(method, url, {**self._headers, **headers}, body)
            try:
                response = self._upstream.exchange(request)
            except OutcomeUnknown as failure:
                may_be_received = True
                if failure.reason != "broken":
                    raise
                # A persistent connection can be closed by the server just as it is used again.
                response = self._upstream.exchange(request)
            return self._read(response)
        except (OutcomeUnknown, UndecodableResponse):
            raise Unreachable("no_answer") from None
        except (Rejected, ValueError):
            # The configured address is not a usable one.
            raise Unreachable("not_sent") from None
        except ResponseTooLargeError:
            raise
        except Unreachable:
            # A second attempt that was not sent proves nothing about the first.
            raise Unreachable("no_answer" if may_be_received else "not_sent") from None

    def _read(self, response: HttpUpstreamResponse) -> HttpResponse:
        headers = {name.lower(): value for name, value in response.headers}
        decoder = decoder_for(headers.get("content-encoding")) or IdentityDecoder()
        body = bytearray()
        try:
            while chunk := response.read(extends_deadline=False):
                for piece in decoder.feed(chunk):
                    body += piece
                    if len(body) > self._max_bytes:
                        raise ResponseTooLargeError
        finally:
            response.close()
        return HttpResponse(response.status, bytes(body), _retry_after_seconds(response.status, headers))


def _request(method: str, url: str, headers: Mapping[str, str], body: bytes) -> UpstreamRequest:
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    authorization = {"Authorization": "Basic " + base64.b64encode(unquote(user).encode()).decode()} if user else {}
    return UpstreamRequest(
        method,
        f"{parts.scheme}://{host}",
        (parts.path or "/") + (f"?{parts.query}" if parts.query else ""),
        [*{**_HEADERS, **headers, **authorization}.items()],
        body,
    )


def _retry_after_seconds(status: int, headers: Mapping[str, str]) -> int:
    """Return when a server wants the next request, in seconds: 0 if it does not say so.

    `Retry-After` is a number or a date (RFC 9110, 10.2.3). Servers without it state when their limit is reset: in
    seconds, or as a time in seconds or milliseconds since 1970.
    """
    names = ["retry-after"]
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        names += ["ratelimit-reset", "x-ratelimit-reset"]
    found = (_seconds_from_now(headers.get(name, "").strip()) for name in names)
    return next((seconds for seconds in found if seconds is not None), 0)


def _seconds_from_now(text: str) -> int | None:
    if text.isascii() and text.isdigit() and len(text) <= _MAX_TIME_DIGITS:
        number = int(text)
        if number < _MIN_TIMESTAMP:
            return number
        timestamp: float = number if number < _MIN_TIMESTAMP * _MS_PER_SECOND else number / _MS_PER_SECOND
    else:
        try:
            timestamp = parsedate_to_datetime(text).timestamp()
        except (ValueError, OverflowError):
            return None
    return max(0, math.ceil(timestamp - clock.now().timestamp()))
