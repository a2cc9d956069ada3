"""Small HTTP exchanges with services that the operator configured: JSON nodes, price sources, the faucet.

Never follows a redirect, keeps a cookie or reads proxy settings; an answer is bounded in size and time. A
failure names no address, for an address may hold a key. Requests must be harmless to repeat.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from http.cookiejar import DefaultCookiePolicy
from typing import Any, NoReturn

import requests
from requests.adapters import HTTPAdapter
from urllib3.exceptions import (
    ConnectTimeoutError,
    HTTPError,
    MaxRetryError,
    NewConnectionError,
    ProtocolError,
)

from app.core.unit_of_work import assert_no_unit
from app.ports.errors import Unreachable

_CHUNK_BYTES = 65_536
_POOL_CONNECTIONS = 32
_LONGEST_NUMBER = 9
_MAX_BRACKETS = 500
"""Our answers have a handful. py_ecc, which web3 brings, lifts Python's recursion limit so far that a deeply
nested text overflows the parser's C stack and kills the process, where it should raise RecursionError."""


class TooLargeError(Unreachable):
    """The answer is larger than is read: asking for less at once may help, asking again does not."""

    def __init__(self) -> None:
        super().__init__("unexpected_answer")


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, read to its end."""

    status: int
    body: bytes
    retry_after_seconds: int = 0

    def json(self) -> Any:
        """Return the parsed body, fractions as Decimal. Raises: Unreachable("unexpected_answer")."""
        if self.body.count(b"[") + self.body.count(b"{") > _MAX_BRACKETS:
            raise Unreachable("unexpected_answer")
        try:
            return json.loads(self.body, parse_float=Decimal, parse_constant=_refuse_constant)
        except (ValueError, RecursionError, ArithmeticError):
            raise Unreachable("unexpected_answer") from None


class HttpClient:
    """One connection pool per process; usable from many threads."""

    def __init__(self, *, connect_seconds: float, total_seconds: float, max_bytes: int = 2**22) -> None:
        """Take the time to wait for a connection and for the whole answer."""
        self._connect_seconds = connect_seconds
        self._total_seconds = total_seconds
        self._max_bytes = max_bytes
        self._session = _session()
        self._process = os.getpid()

    def get(
        self, url: str, *, query: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Return the answer, whatever its status. Raises: Unreachable."""
        return self._exchange(requests.Request("GET", url, params=query, headers=headers))

    def post(self, url: str, body: bytes) -> Answer:
        """Post a JSON text and return the answer, whatever its status.

        Raises: TooLargeError; Unreachable, with the reason "not_sent" when nobody can have read the request.
        """
        return self._exchange(
            requests.Request("POST", url, data=body, headers={"Content-Type": "application/json"})
        )

    def _exchange(self, request: requests.Request) -> Answer:
        assert_no_unit()
        session = self._own_session()
        perhaps_read = False
        try:
            prepared = session.prepare_request(request)
            try:
                return self._send(session, prepared)
            except requests.ConnectionError as error:
                # A connection kept alive can be closed by the other side just as it is used again.
                if not error.args or not isinstance(error.args[0], ProtocolError):
                    raise
                # That the second try goes nowhere says nothing about the first.
                perhaps_read = True
                return self._send(session, prepared)
        except (requests.RequestException, HTTPError, OSError, ValueError) as error:
            perhaps_read = perhaps_read or not _never_sent(error)
        raise Unreachable("no_answer" if perhaps_read else "not_sent")

    def _send(self, session: requests.Session, prepared: requests.PreparedRequest) -> Answer:
        deadline = time.monotonic() + self._total_seconds
        timeout = (self._connect_seconds, self._total_seconds)
        with session.send(prepared, timeout=timeout, allow_redirects=False, stream=True) as response:
            body = bytearray()
            while chunk := response.raw.read1(_CHUNK_BYTES, decode_content=True):
                body += chunk
                if len(body) > self._max_bytes:
                    raise TooLargeError
                if time.monotonic() > deadline:
                    raise Unreachable("unexpected_answer")
            return Answer(response.status_code, bytes(body), _seconds(response.headers.get("Retry-After")))

    def _own_session(self) -> requests.Session:
        # Sockets must not be shared with the process that this one was forked from.
        if self._process != os.getpid():
            self._session, self._process = _session(), os.getpid()
        return self._session


def _never_sent(error: Exception) -> bool:
    if isinstance(error, requests.ConnectTimeout | requests.exceptions.InvalidURL):
        return True
    inner = error.args[0] if error.args else None
    reason = inner.reason if isinstance(inner, MaxRetryError) else inner
    return isinstance(reason, NewConnectionError | ConnectTimeoutError)


def _seconds(retry_after: str | None) -> int:
    """Return a `Retry-After` in seconds; the form with a date is not in use with JSON services."""
    text = (retry_after or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < _LONGEST_NUMBER else 0


def _session() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    session.headers["Accept"] = "application/json"
    session.headers["User-Agent"] = "purser"
    adapter = HTTPAdapter(pool_maxsize=_POOL_CONNECTIONS, max_retries=0)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(name)
