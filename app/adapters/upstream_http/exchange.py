"""One HTTP exchange: the request written unchanged, the response read as it arrives, the connections pooled.

requests and urllib3 rewrite targets, and resolve a name again after its addresses were checked.
"""

import functools
import itertools
import os
import re
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit

import certifi

from app.adapters.upstream_http.response_reader import Http1Reader, MalformedResponse, StillSilent, set_timeout
from app.core import ip_ranges
from app.db.unit_of_work import assert_no_unit
from app.observability import counters
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.upstream import Headers, UpstreamRequest

_MAX_IDLE = 1100
_PORTS = {"http": 80, "https": 443}

AddressCheck = Callable[[str], bool]


class UpstreamConnection:
    """One open connection; it resolves its host once and connects to an address that passed the check."""

    def __init__(
        self, origin: str, *, context: ssl.SSLContext, allows: AddressCheck | None, connect_seconds: float
    ) -> None:
        """Connect to `scheme://host[:port]`; with a check, only to https on its port. Raises: Rejected, Unreachable."""
        self.origin = origin
        self.usable_until = 0.0
        self._context = context
        try:
            parts = urlsplit(origin)
            self._host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise Rejected("address_not_allowed") from None
        self._secure = parts.scheme == "https"
        if allows is not None and not (self._secure and port == _PORTS["https"]):
            raise Rejected("address_not_allowed")
        try:
            found = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise Unreachable("name_not_found") from None
        if allows is not None and not all(allows(str(entry[4][0])) for entry in found):
            # A public address next to a private one is the technique of DNS rebinding.
            raise Rejected("address_not_allowed")
        self.socket = self._open(found, time.monotonic() + connect_seconds)

    def _open(self, found: Sequence[Any], deadline: float) -> socket.socket:
        for family, kind, protocol, _, address in found:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            with suppress(OSError):
                return self._connected(socket.socket(family, kind, protocol), address, left)
        raise Unreachable("no_connection")

    def is_alive(self) -> bool:
        """Return whether an idle connection can be used again; one with unread data cannot."""
        if self.is_idle_expired():
            return False
        # Not select(), which does not support descriptors above 1023.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def is_idle_expired(self) -> bool:
        """Return whether the server may be about to close it."""
        return time.monotonic() > self.usable_until

    def close(self) -> None:
        self.socket.close()

    def _connected(self, new: socket.socket, address: Any, seconds: float) -> socket.socket:
        try:
            new.settimeout(seconds)
            new.connect(address)
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                # The certificate must be valid for the name, whichever address was chosen.
                return self._context.wrap_socket(new, server_hostname=self._host)
        except BaseException:
            new.close()
            raise
        return new


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the process's only context: loading the authorities takes longer than a handshake."""
    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class ConnectionPool:
    """Idle connections by origin, the most recent first; usable from many threads, without waiting."""

    def __init__(self, *, allows: AddressCheck | None, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._new_connection = functools.partial(UpstreamConnection, context=tls_context(), allows=allows)
        self._lock = threading.Lock()
        self._idle: dict[str, deque[UpstreamConnection]] = {}
        self._idle_count = 0
        self._process = os.getpid()

    def __del__(self) -> None:
        for idle in itertools.chain(*self._idle.values()):
            idle.close()

    def acquire(self, origin: str, *, connect_seconds: float) -> UpstreamConnection:
        """Return an open connection. Raises: Unreachable, Rejected."""
        while (idle := self._pop(origin)) is not None:
            if idle.is_alive():
                return idle
            idle.close()
        return self._new_connection(origin, connect_seconds=connect_seconds)

    def release(self, connection: UpstreamConnection) -> None:
        connection.usable_until = time.monotonic() + self._idle_seconds
        with self._lock:
            expired = self._remove_expired(connection.origin if self._idle_count < _MAX_IDLE else None)
            if self._process == os.getpid() and self._idle_count < _MAX_IDLE:
                self._idle.setdefault(connection.origin, deque()).append(connection)
                self._idle_count += 1
            else:
                expired.append(connection)
        for old in expired:
            old.close()

    def _pop(self, origin: str) -> UpstreamConnection | None:
        with self._lock:
            if self._process != os.getpid():
                # Sockets must not be shared with the parent process after a fork.
                self._idle.clear()
                self._idle_count, self._process = 0, os.getpid()
            rested = self._idle.get(origin)
            if not rested:
                return None
            self._idle_count -= 1
            return rested.pop()

    def _remove_expired(self, origin: str | None) -> list[UpstreamConnection]:
        dropped = []
        for name in [origin] if origin is not None else list(self._idle):
            rested = self._idle.get(name)
            while rested and rested[0].is_idle_expired():
                dropped.append(rested.popleft())
                self._idle_count -= 1
            if rested is not None and not rested:
                del self._idle[name]
        return dropped


_MAX_ONE_WRITE_BYTES = 65_536
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_TARGET = re.compile(r"/[\x21-\x7e]*", re.ASCII)
_BREAKS = re.compile(r"[\r\n\0]")
_BODYLESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
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
        self._aborted = True
        if connection is not None:
            with suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

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

    def __init__(
        self, *, connect_seconds: Decimal | float, read_seconds: Decimal | float, idle_seconds: float = 25.0
    ) -> None:
        self._connect_seconds = float(connect_seconds)
        self._read_seconds = float(read_seconds)
        self._pool = ConnectionPool(allows=self._allows, idle_seconds=idle_seconds)

    def send(self, request: UpstreamRequest) -> HttpUpstreamResponse:
        """Send once, and measure it. Raises: Unreachable, OutcomeUnknown, Rejected("address_not_allowed", …)."""
        started = time.perf_counter()
        outcome = "unreachable"
        try:
            incoming = self.open(request)
            outcome = f"{incoming.status // 100}xx"
        except _BROKEN as error:
            outcome = "timeout" if isinstance(error, TimeoutError) else "broken"
            raise OutcomeUnknown(outcome) from None
        except Rejected:
            outcome = "rejected"
            raise
        else:
            return incoming
        finally:
            upstream = self._metric_label or _hostname(request.origin)
            counters.UPSTREAM_SECONDS.labels(outcome, upstream).observe(time.perf_counter() - started)

    def open(self, request: UpstreamRequest) -> HttpUpstreamResponse:
        """Send once. Raises: Unreachable, Rejected; OSError and MalformedResponse when it may have been sent."""
        assert_no_unit()
        head = _head(request)
        total_seconds = float("inf" if request.timeout_seconds is None else request.timeout_seconds)
        deadline = time.monotonic() + total_seconds
        connection = self._pool.acquire(request.origin, connect_seconds=min(self._connect_seconds, total_seconds))
        try:
            return self._send(connection, request, head, deadline)
        except BaseException:
            connection.close()
            raise

    def _send(
        self, connection: UpstreamConnection, request: UpstreamRequest, head: bytes, deadline: float
    ) -> HttpUpstreamResponse:
        open_socket = connection.socket
        seconds = self._read_seconds if request.timeout_seconds is None else float(request.timeout_seconds)
        head_seconds = seconds if request.head_seconds is None else min(seconds, float(request.head_seconds))
        if (left := deadline - time.monotonic()) <= 0:
            raise Unreachable("no_connection")
        set_timeout(open_socket, min(head_seconds, left))
        # In one piece while that is cheap: two writes are two packets, and the head alone starts no work.
        is_small = len(request.body) <= _MAX_ONE_WRITE_BYTES
        for piece in (head + request.body,) if is_small else (head, request.body):
            open_socket.sendall(piece)
        reader = Http1Reader(open_socket, method=request.method, seconds=min(head_seconds, deadline - time.monotonic()))
        reader.seconds = seconds
        return HttpUpstreamResponse(reader, connection, self._pool, extends_deadline=request.timeout_seconds is None)


class PublicUpstream(HttpUpstream):
    """Sends to addresses that others supplied: https on its usual port, on the public internet, nowhere else.

    Names are resolved once, every address that they have is checked, and the connection uses one of those.
    """

    _allows: AddressCheck | None = staticmethod(ip_ranges.is_public)
    _metric_label = "public"


@functools.lru_cache(maxsize=1024)
def _hostname(origin: str) -> str:
    return urlsplit(origin).hostname or ""


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
