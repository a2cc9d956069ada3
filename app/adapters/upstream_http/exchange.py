"""One HTTP exchange: the request written unchanged, the response read as it arrives.

requests and urllib3 rewrite targets, and resolve a name again after its addresses were checked.
"""

import functools
import re
import socket
import time
from contextlib import suppress
from decimal import Decimal
from urllib.parse import urlsplit

from app.adapters.upstream_http.connections import AddressCheck, ConnectionPool, UpstreamConnection
from app.adapters.upstream_http.response_reader import Http1Reader, MalformedResponse, StillSilent, set_timeout
from app.core import ip_ranges
from app.db.unit_of_work import assert_no_unit
from app.observability import counters
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.upstream import Headers, UpstreamRequest

_MAX_ONE_WRITE_BYTES = 65_536
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_TARGET = re.compile(r"/[\x21-\x7e]*", re.ASCII)
_BREAKS = re.compile(r"[\r\n\0]")
_BODYLESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_HTTPS_PORT = 443
# The failures of a connection in use, and of a response that is not HTTP.
_BROKEN = (OSError, MalformedResponse)


class HttpUpstreamResponse:
    """A response being read; its connection returns to the pool when it was read completely."""

    def __init__(
        self,
        reader: Http1Reader,
        connection: UpstreamConnection,
        pool: ConnectionPool,
        *,
        extends_deadline: bool = True,
    ) -> None:
        """Store an open response. Without `extends_deadline`, all pieces share what the head left of the time."""
        self._reader = reader
        self._extends_deadline = extends_deadline
        self._connection: UpstreamConnection | None = connection
        self._pool = pool
        self._ended = False
        self._aborted = False
        self._is_silent = False
        self.headers: Headers = reader.head.headers

    @property
    def status(self) -> int:
        return self._reader.head.status

    def read(self, *, extends_deadline: bool = True) -> bytes:
        if self._ended:
            return b""
        if extends_deadline and self._extends_deadline:
            self._reader.restart_timeout()
        try:
            piece = self._reader.read()
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("timeout") from None
        except _BROKEN:
            self.close()
            raise OutcomeUnknown("broken") from None
        if not piece:
            if self._aborted:
                self.close()
                raise OutcomeUnknown("broken")
            self._end(is_reusable=self._reader.is_reusable)
        return piece

    def read_within(self, seconds: Decimal) -> bytes | None:
        self._reader.silence_seconds = float(seconds)
        try:
            piece = self.read(extends_deadline=not self._is_silent)
        except StillSilent:
            self._is_silent = True
            return None
        finally:
            self._reader.silence_seconds = None
        self._is_silent = False
        return piece

    def abort(self) -> None:
        connection = self._connection
        open_socket = None if connection is None else connection.socket
        self._aborted = True
        if open_socket is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._end(is_reusable=False)

    def _end(self, *, is_reusable: bool) -> None:
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if is_reusable:
            self._pool.release(connection)
        else:
            connection.close()


class HttpUpstream:
    """Sends to the services that the operator configured, at any address."""

    _allows: AddressCheck | None = None
    _metric_label: str | None = None
    """Replaces the host in metrics; None if hosts are few, and no outsider can choose others."""

    def __init__(self, *, connect_seconds: Decimal | float, read_seconds: Decimal | float) -> None:
        self._connect_seconds = float(connect_seconds)
        self._read_seconds = float(read_seconds)
        self._pool = ConnectionPool(allows=self._allows)

    def send(self, request: UpstreamRequest) -> HttpUpstreamResponse:
        """Send once, and measure it. Raises: Unreachable, OutcomeUnknown, Rejected."""
        started = time.perf_counter()
        outcome = "unreachable"
        try:
            incoming = self._exchange(request)
            outcome = f"{incoming.status // 100}xx"
        except OutcomeUnknown as error:
            outcome = error.reason
            raise
        except Rejected:
            outcome = "rejected"
            raise
        else:
            return incoming
        finally:
            upstream = self._metric_label or _hostname(request.origin)
            counters.UPSTREAM_SECONDS.labels(outcome, upstream).observe(time.perf_counter() - started)

    def _exchange(self, request: UpstreamRequest) -> HttpUpstreamResponse:
        assert_no_unit()
        head = _head(request)
        connection = self._pool.acquire(request.origin, connect_seconds=self._connect_seconds)
        try:
            return self._send(connection, request, head)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise OutcomeUnknown("timeout") from None
            if isinstance(error, _BROKEN):
                raise OutcomeUnknown("broken") from None
            raise

    def close(self) -> None:
        self._pool.close()

    def _send(self, connection: UpstreamConnection, request: UpstreamRequest, head: bytes) -> HttpUpstreamResponse:
        open_socket = connection.socket
        if open_socket is None:
            raise Unreachable("no_connection")
        seconds = self._read_seconds if request.timeout_seconds is None else request.timeout_seconds
        head_seconds = seconds if request.head_seconds is None else min(seconds, float(request.head_seconds))
        set_timeout(open_socket, head_seconds)
        _write(open_socket, head, request.body)
        reader = Http1Reader(open_socket, method=request.method, seconds=head_seconds)
        reader.seconds = seconds
        extends_deadline = request.timeout_seconds is None
        return HttpUpstreamResponse(reader, connection, self._pool, extends_deadline=extends_deadline)


class PublicUpstream(HttpUpstream):
    """Sends to addresses that others supplied: https on its usual port, on the public internet, nowhere else.

    Names are resolved once, every address that they have is checked, and the connection uses one of those.
    """

    _allows: AddressCheck | None = staticmethod(ip_ranges.is_public)
    _metric_label = "public"

    def send(self, request: UpstreamRequest) -> HttpUpstreamResponse:
        """Send once. Raises: Rejected("address_not_allowed"), Unreachable, OutcomeUnknown."""
        if not _is_https_on_its_port(request.origin):
            raise Rejected("address_not_allowed")
        return super().send(request)


@functools.lru_cache(maxsize=1024)
def _hostname(origin: str) -> str:
    return urlsplit(origin).hostname or ""


@functools.lru_cache(maxsize=1024)
def _is_https_on_its_port(origin: str) -> bool:
    try:
        parts = urlsplit(origin)
        port = parts.port or _HTTPS_PORT
    except ValueError:
        return False
    return parts.scheme == "https" and port == _HTTPS_PORT


def _write(open_socket: socket.socket, head: bytes, body: bytes) -> None:
    # In one piece while that is cheap: two writes are two packets, and the head alone starts no work.
    if len(body) <= _MAX_ONE_WRITE_BYTES:
        open_socket.sendall(head + body)
    else:
        open_socket.sendall(head)
        open_socket.sendall(body)


def _head(request: UpstreamRequest) -> bytes:
    """Encode a request's head. Raises: Rejected for what would be parsed as more than one request."""
    scheme, separator, host = request.origin.partition("://")
    if not separator or not host or set(host) & set("/?#@\\ ") or scheme not in {"http", "https"}:
        raise Rejected("address_not_allowed")
    if not _TOKEN.fullmatch(request.method) or not _TARGET.fullmatch(request.target):
        raise Rejected("malformed_request")
    lines = [f"{request.method} {request.target} HTTP/1.1", f"Host: {host}"]
    for name, value in request.headers:
        if not _TOKEN.fullmatch(name) or _BREAKS.search(value):
            raise Rejected("malformed_request")
        lines.append(f"{name}: {value}")
    if request.body or request.method not in _BODYLESS:
        lines.append(f"Content-Length: {len(request.body)}")
    try:
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
    except UnicodeEncodeError:
        raise Rejected("malformed_request") from None
