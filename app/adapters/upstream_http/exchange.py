"""One exchange: the request written as it is given, the answer read as it arrives.

Python's own client parses the answer. The request is written here, because what would write it (requests, urllib3)
rewrites targets, and because it must be known whether anything was sent.
"""

from __future__ import annotations

import http.client
import io
import re
import socket
import time
from contextlib import suppress
from decimal import Decimal
from http import HTTPStatus
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from app.adapters.upstream_http.connections import Connection, ConnectionPool
from app.core import public_addresses, tallies
from app.core.unit_of_work import assert_no_unit
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.ports.upstream import Headers, Outgoing

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_CHUNK_BYTES = 65_536
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
_TARGET = re.compile(r"/[\x21-\x7e]*", re.ASCII)
_BREAKS = re.compile(r"[\r\n\0]")
_BODYLESS = frozenset({"GET", "HEAD", "OPTIONS", "DELETE", "TRACE"})
_BODYLESS_ANSWERS = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
_HTTPS_PORT = 443
_MOST_INTERIM_ANSWERS = 10
# Whatever may go wrong with a connection in use, and with an answer that is not HTTP.
_BROKEN = (OSError, http.client.HTTPException, ValueError)


class _Raw(io.RawIOBase):
    """Reads from a socket until a moment: bytes that trickle in do not put it off."""

    def __init__(self, open_socket: socket.socket) -> None:
        """Take the socket; `until` has to be set before anything is read."""
        self._socket = open_socket
        self.until = 0.0

    def readable(self) -> bool:
        """Say yes."""
        return True

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read what has arrived. Raises: TimeoutError."""
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._socket.settimeout(left)
        return self._socket.recv_into(buffer)


class _Reader(io.BufferedReader):
    """Remembers that the other side has ended while a line was read."""

    met_end = False

    def readline(self, size: int | None = -1, /) -> bytes:
        """Read a line."""
        line = super().readline(size)
        if not line.endswith(b"\n"):
            self.met_end = True
        return line


class _Response(http.client.HTTPResponse):
    """Python's own reader of answers, but for three things that it believes an upstream.

    A head that breaks off is no head, what comes before an answer (1xx) is no answer, and time is what the head or a
    piece takes in all, not each byte of it.
    """

    def __init__(self, open_socket: socket.socket, *, method: str, seconds: float) -> None:
        """Take the socket that the request went out on, and how long the head and each piece may take."""
        super().__init__(open_socket, method=method)
        self.fp.close()
        self._raw = _Raw(open_socket)
        self._seconds = seconds
        self._reader = _Reader(self._raw, _CHUNK_BYTES)
        self.fp = self._reader
        self.allow_time()

    def allow_time(self) -> None:
        """Begin to count the time for what is read next."""
        self._raw.until = time.monotonic() + self._seconds

    def _read_status(self) -> tuple[str, int, str]:
        # http.client leaves out "100 Continue" only: any other would be given out as the answer, and the answer itself
        # to whoever asks next on this connection (RFC 9110 §15.2).
        for _ in range(_MOST_INTERIM_ANSWERS):
            status: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
            if status[1] >= HTTPStatus.OK:
                return status
            if status[1] == HTTPStatus.SWITCHING_PROTOCOLS:
                break
            http.client.parse_headers(self.fp)
        raise http.client.HTTPException

    def check_head(self) -> None:
        """Refuse a head that broke off, which http.client takes for a complete one. Raises: HTTPException."""
        if self._reader.met_end:
            raise http.client.IncompleteRead(b"")


class HttpIncoming:
    """An answer on its way in; the connection rests after it when it was read to its end."""

    def __init__(self, response: _Response, connection: Connection, pool: ConnectionPool) -> None:
        """Take over a connection whose answer's head was read."""
        self._response = response
        self._connection: Connection | None = connection
        self._pool = pool
        # Such answers have no body, whatever their head says (RFC 9112 §6.3); http.client would wait for its chunks.
        is_bodyless = response.status in _BODYLESS_ANSWERS
        self._left = None if response.chunked and not is_bodyless else response.length
        # Who speaks of chunks may send an empty one all the same, which nobody is to find later.
        self._rests = not (response.will_close or (response.chunked and is_bodyless))
        self._ended = False
        self._aborted = False
        self.headers: Headers = response.getheaders()

    @property
    def status(self) -> int:
        """The status code."""
        return self._response.status

    def read(self) -> bytes:
        """Return what has arrived; empty at the end. Raises: OutcomeUnknown."""
        if self._ended:
            return b""
        self._response.allow_time()
        try:
            piece = (
                b""
                if self._left == 0
                else self._response.read1(min(_CHUNK_BYTES, self._left or _CHUNK_BYTES))
            )
        except TimeoutError:
            self.close()
            raise OutcomeUnknown("timeout") from None
        except _BROKEN:
            self.close()
            raise OutcomeUnknown("broken") from None
        if self._left is not None:
            self._left -= len(piece)
        if not piece:
            if self._left or self._aborted:
                self.close()
                raise OutcomeUnknown("broken")
            self._finish()
        return piece

    def abort(self) -> None:
        """Wake a read that waits in another thread; it finds the answer broken off."""
        connection = self._connection
        open_socket = None if connection is None else connection.socket
        self._aborted = True
        if open_socket is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Cut the exchange off, if it has not ended."""
        self._ended = True
        connection, self._connection = self._connection, None
        if connection is not None:
            self._response.close()
            connection.close()

    def _finish(self) -> None:
        self._ended = True
        connection, self._connection = self._connection, None
        self._response.close()
        if connection is None:
            return
        if self._rests:
            self._pool.put(connection)
        else:
            connection.close()


class HttpUpstream:
    """Sends to the services that the operator configured, wherever they are."""

    _counted_as: str | None = None
    """What stands for the host in counts; None where hosts are few, and no outsider can name others."""

    def __init__(self, *, connect_seconds: Decimal, read_seconds: Decimal) -> None:
        """Take the time to wait for a connection and for each piece of an answer."""
        self._connect_seconds = float(connect_seconds)
        self._read_seconds = float(read_seconds)
        self._pool = ConnectionPool()

    def send(self, request: Outgoing) -> HttpIncoming:
        """Send once. Raises: Unreachable, OutcomeUnknown, Rejected."""
        assert_no_unit()
        started = time.perf_counter_ns()
        outcome = "unreachable"
        try:
            incoming = self._send(request)
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
            tallies.observe(
                "upstream_seconds",
                (time.perf_counter_ns() - started) // 1000,
                upstream=self._counted_as or urlsplit(request.origin).hostname or "",
                outcome=outcome,
            )

    def _send(self, request: Outgoing) -> HttpIncoming:
        head = _head(request)
        connection = self._pool.take(request.origin, connect_seconds=self._connect_seconds)
        try:
            return self._exchange(connection, request, head)
        except BaseException as error:
            connection.close()
            if isinstance(error, TimeoutError):
                raise OutcomeUnknown("timeout") from None
            if isinstance(error, _BROKEN):
                raise OutcomeUnknown("broken") from None
            raise

    def close(self) -> None:
        """Close what rests; calls that are under way go on."""
        self._pool.close()

    def _exchange(self, connection: Connection, request: Outgoing, head: bytes) -> HttpIncoming:
        open_socket = connection.socket
        if open_socket is None:
            raise Unreachable("no_connection")
        open_socket.settimeout(self._read_seconds)
        _write(open_socket, head, request.body)
        response = _Response(open_socket, method=request.method, seconds=self._read_seconds)
        try:
            response.begin()
            response.check_head()
        except BaseException:
            response.close()
            raise
        return HttpIncoming(response, connection, self._pool)


class PublicUpstream(HttpUpstream):
    """Sends to addresses that others gave us: https on its usual port, on the public internet, nowhere else.

    Names are resolved once, every address that they have is checked, and the connection goes to one of those.
    """

    _counted_as = "public"

    def __init__(self, *, connect_seconds: Decimal, read_seconds: Decimal) -> None:
        """Take the time to wait for a connection and for each piece of an answer."""
        super().__init__(connect_seconds=connect_seconds, read_seconds=read_seconds)
        self._pool = ConnectionPool(allows=public_addresses.is_public)

    def send(self, request: Outgoing) -> HttpIncoming:
        """Send once. Raises: Rejected("address_not_allowed"), Unreachable, OutcomeUnknown."""
        try:
            parts = urlsplit(request.origin)
            allowed = parts.scheme == "https" and (parts.port or _HTTPS_PORT) == _HTTPS_PORT
        except ValueError:
            allowed = False
        if not allowed:
            raise Rejected("address_not_allowed")
        return super().send(request)


def _write(open_socket: socket.socket, head: bytes, body: bytes) -> None:
    # In one piece while that is cheap: two writes are two packets, and the head alone starts no work.
    if len(body) <= _CHUNK_BYTES:
        open_socket.sendall(head + body)
    else:
        open_socket.sendall(head)
        open_socket.sendall(body)


def _head(request: Outgoing) -> bytes:
    """Write a request's head. Raises: Rejected for what would be read as more than one request."""
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
