"""HTTP exchanges with services that the operator configured: JSON nodes, price feeds, the faucet.

Sessions of `requests` that never follow a redirect, keep a cookie or read proxy settings, with what the library lacks:
a deadline, and connections whose next bytes are a response. A response is bounded in size and time. A failure names no
address, because an address may contain a key. Requests must be harmless to repeat.
"""

import io
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException, HTTPResponse, UnknownProtocol
from http.cookiejar import DefaultCookiePolicy
from types import MappingProxyType
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes, urlencode, urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3 import BaseHTTPResponse, Timeout
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util.connection import create_connection
from urllib3.util.response import assert_header_parsing

from app.adapters.upstream_http.exchange import tls_context
from app.core import clock
from app.core.foreign import MalformedResponseError
from app.core.strict_json import parse_response
from app.db.unit_of_work import assert_no_unit
from app.ports.errors import Unreachable

_MAX_HOSTS = 16
_MAX_IDLE = 256
_IDLE_SECONDS = 300.0
"""Networks drop connections that were idle for longer, and nobody is told."""


def new_session() -> requests.Session:
    """Return a session that may be used by many threads."""
    session = _Session()
    session.trust_env = False
    session.cookies.set_policy(DefaultCookiePolicy(allowed_domains=[]))
    adapter = _Adapter(_MAX_HOSTS, _MAX_IDLE)
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


class _Session(requests.Session):
    def get_redirect_target(self, resp: Any) -> None:
        """Return None: requests reads the body of a redirect, however large, even if it is not followed."""


class _Adapter(HTTPAdapter):
    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs, ssl_context=tls_context())

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> Any:
        pool: Any = super().get_connection_with_tls_context(*args, **kwargs)
        pool.ConnectionCls = _SecureConnection if pool.scheme == "https" else _Connection
        return pool

    def cert_verify(self, *_: Any) -> None:
        """Leave that to the context: with a path of certificates, each connection would load them again."""


class _DeadlineReader(io.RawIOBase):
    """Reads a socket until one point in time; the timeout of urllib3 begins again with each byte."""

    def __init__(self, raw: io.RawIOBase, open_socket: socket.socket) -> None:
        self._raw, self._socket = raw, open_socket
        self._deadline = time.monotonic() + (open_socket.gettimeout() or 0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(HTTPResponse):
    def __init__(self, sock: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(sock, *args, **kwargs)
        self.fp = io.BufferedReader(_DeadlineReader(self.fp.detach(), sock))

    def begin(self) -> None:
        """Read the head, after those of informational responses, which would leave it to the next request."""
        while True:
            super().begin()
            # urllib3 would only log it, with the URL.
            assert_header_parsing(self.headers)
            if self.status >= HTTPStatus.OK:
                return
            if self.status == HTTPStatus.SWITCHING_PROTOCOLS:
                raise UnknownProtocol("")
            self.headers = self.msg = None  # type: ignore[assignment]


class _Connection(HTTPConnection):
    response_class = _Response
    _used_at = 0.0

    @property
    def is_connected(self) -> bool:
        """Return whether the next bytes on an idle connection can only be the next response."""
        is_old = time.monotonic() - self._used_at > _IDLE_SECONDS
        # TLS keeps what it decrypted, where no poll sees it.
        has_rest = isinstance(self.sock, ssl.SSLSocket) and self.sock.pending()
        return not is_old and not has_rest and super().is_connected

    def connect(self) -> None:
        """Connect. Raises: Unreachable, which passes through urllib3 and requests."""
        with suppress(OSError, HTTPError, ValueError):
            super().connect()
            return
        raise Unreachable("not_sent")

    def getresponse(self) -> Any:
        self._used_at = time.monotonic()
        return super().getresponse()

    def _new_conn(self) -> socket.socket:
        """Connect to one address of the host, all within the time limit; urllib3 would have it for each."""
        deadline = time.monotonic() + (self.timeout or 0)
        for *_, address in socket.getaddrinfo(self._dns_host, self.port, type=socket.SOCK_STREAM):
            with suppress(OSError):
                left = deadline - time.monotonic()
                return create_connection((str(address[0]), self.port), left, socket_options=self.socket_options)
        raise OSError


class _SecureConnection(_Connection, HTTPSConnection):
    pass


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
        self._connect_seconds = connect_seconds
        self._total_seconds = total_seconds
        self._max_bytes = max_bytes
        self._headers = headers
        self._sessions: dict[int, requests.Session] = {}

    def get(self, url: str, *, query: Mapping[str, str] | None = None) -> HttpResponse:
        """Return the response, whatever its status. Raises: Unreachable."""
        return self._exchange("GET", f"{url}?{urlencode(query)}" if query else url)

    def post(self, url: str, body: bytes, *, repeats: bool = True) -> HttpResponse:
        """Post a JSON text and return the response, whatever its status.

        With `repeats`, once more if the connection breaks, which hides that the first request may have been executed.

        Raises: ResponseTooLargeError; Unreachable, with the reason "not_sent" when no server can have read the
        request.
        """
        return self._exchange("POST", url, body, attempts=2 if repeats else 1)

    def _exchange(self, method: str, url: str, body: bytes = b"", *, attempts: int = 2) -> HttpResponse:
        assert_no_unit()
        deadline = time.monotonic() + self._total_seconds
        reason = "not_sent"
        with suppress(*_FOREIGN):
            content_type = {"Content-Type": "application/json"} if body else {}
            request = _prepare(method, url, {**_HEADERS, **self._headers, **content_type}, body)
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
    """Return when a server wants the next request, in seconds: by `Retry-After`, or the reset of its limit; else 0."""
    names = ["retry-after"]
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        names += ["ratelimit-reset", "x-ratelimit-reset"]
    found = (clock.seconds_until(headers.get(name, "")) for name in names)
    return next((seconds for seconds in found if seconds is not None), 0)
