"""A client's connection with progress timeouts, within the thread and memory pools of its process.

A timeout of a Python socket starts again with each byte, so that a client that sends one byte at a time could hold a
thread for any time. Here waiting consumes the timeout and bytes replenish it, up to its initial value. Each connection
that is shed is logged and counted.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

import structlog

from server.hooks import Hooks, ShedReason
from server.pool import ANONYMOUS, ResourceUse

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_log = structlog.get_logger(__name__)

READ_TIMEOUT_MS = 30_000
WRITE_TIMEOUT_MS = 60_000
MIN_BYTES_PER_SECOND = 8192
_MS_PER_SECOND = 1000
_NANOS_PER_MS = 1_000_000
_NANOS_PER_SECOND = 1_000_000_000


class ConnectionShed(TimeoutError):
    """The client sent or read too slowly, or there is no thread or memory to wait for it."""

    def __init__(self, reason: ShedReason) -> None:
        # Servers expect ECONNRESET and do not log it.
        super().__init__(errno.ECONNRESET, f"connection shed: {reason.value}")
        self.reason = reason


class MalformedBody(OSError):
    """The client's body is not valid HTTP, for instance in its chunks; where it ends is unknown."""

    def __init__(self) -> None:
        super().__init__(errno.ECONNRESET, "malformed body")


class ThreadPermit(Protocol):
    """The right to a thread of the pool, which a connection releases when its request ends."""

    @property
    def is_held(self) -> bool:
        """Return whether it has not been released."""
        ...

    def close(self) -> None:
        """Release it. May be repeated."""
        ...


@dataclass(slots=True)
class _ProgressTimeout:
    """The time left to wait for the client, in one direction."""

    limit_ns: int
    remaining_ns: int

    @classmethod
    def from_ms(cls, milliseconds: int) -> Self:
        return cls(milliseconds * _NANOS_PER_MS, milliseconds * _NANOS_PER_MS)

    def consume(self, nanoseconds: int) -> None:
        self.remaining_ns -= nanoseconds

    def replenish(self, count: int) -> None:
        self.remaining_ns = min(self.limit_ns, self.remaining_ns + count * _NANOS_PER_SECOND // MIN_BYTES_PER_SECOND)


class ClientSocket(socket.socket):
    """An accepted connection. Only the time spent waiting for the client counts.

    The kernel's socket is always non-blocking and the timeout an attribute: gunicorn changes it several times per
    request, and each system call lets another thread take the interpreter.
    """

    account_id: str
    """The account that threads and memory are counted for, once it is known."""

    _timeout_seconds: float | None
    _hooks: Hooks
    _read_timeout: _ProgressTimeout
    _write_timeout: _ProgressTimeout
    _body_bytes: Counter[str]
    _decoded_reservation: tuple[str, int]
    _permit: ThreadPermit | None
    _write_deadline_ns: int | None

    @classmethod
    def wrap(cls, accepted: socket.socket, hooks: Hooks) -> Self:
        """Take over a connection, which waits in threads and reads bodies into memory of the application's pools."""
        wrapped = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        socket.socket.setblocking(wrapped, False)  # noqa: FBT003 - the library's own signature
        wrapped._timeout_seconds = None
        wrapped._hooks = hooks
        wrapped.begin_request()
        return wrapped

    def begin_request(self) -> None:
        """Reset timeouts and counts for the next request."""
        self._read_timeout, self._write_timeout = (
            _ProgressTimeout.from_ms(READ_TIMEOUT_MS),
            _ProgressTimeout.from_ms(WRITE_TIMEOUT_MS),
        )
        self.account_id = ANONYMOUS
        self._body_bytes = Counter()
        self._decoded_reservation = (ANONYMOUS, 0)
        self._permit = None
        self._write_deadline_ns = None

    def end_request(self) -> None:
        """Release what the request held."""
        if self._permit is not None:
            self._permit.close()
        for account_id, count in self._body_bytes.items():
            self._hooks.bodies.release(ResourceUse.BODY, account_id, count)
        self._body_bytes.clear()
        self.release_decoded()

    def attach_permit(self, permit: ThreadPermit, /) -> None:
        """Hold a permit until the end of the request. While it is held, waiting needs no other thread of the pool."""
        self._permit = permit

    def set_write_deadline(self, deadline_ns: int, /) -> None:
        """Bound the time for writing the response, however fast the client reads (ns of the monotonic clock)."""
        self._write_deadline_ns = deadline_ns

    def settimeout(self, value: float | None, /) -> None:
        """Wait this long, without end (None) or not at all (0)."""
        self._timeout_seconds = value

    def setblocking(self, flag: bool, /) -> None:  # noqa: FBT001 - the library's own signature
        """Wait or not."""
        self._timeout_seconds = None if flag else 0

    def gettimeout(self) -> float | None:
        """Return the timeout."""
        return self._timeout_seconds

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read what has arrived; wait for it unless the socket is non-blocking. Raises: ConnectionShed."""
        while True:
            try:
                piece = super().recv(size, flags)
            except BlockingIOError:
                if self._timeout_seconds == 0:
                    raise
                self._wait_ready(select.POLLIN, self._read_timeout, ShedReason.SLOW_SENDER)
                continue
            self._read_timeout.replenish(len(piece))
            if self._timeout_seconds != 0:
                self.reserve_body(len(piece))
            return piece

    def receive_within(self, milliseconds: int, size: int) -> bytes:
        """Return what arrives of the next request within a time; nothing if nothing does or the client is gone."""
        poll = select.poll()
        poll.register(self, select.POLLIN)
        with suppress(OSError):
            if poll.poll(milliseconds):
                return super().recv(size)
        return b""

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """Write some of it, with the same wait. Raises: ConnectionShed."""
        while True:
            try:
                sent = super().send(data, flags)
            except BlockingIOError:
                if self._timeout_seconds == 0:
                    raise
                self._wait_ready(select.POLLOUT, self._write_timeout, ShedReason.SLOW_READER)
                continue
            self._write_timeout.replenish(sent)
            return sent

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Write all of it, with the same wait. Raises: ConnectionShed."""
        remaining = memoryview(data).cast("B")
        while remaining:
            remaining = remaining[self.send(remaining, flags) :]

    def _wait_ready(self, event: int, timeout_budget: _ProgressTimeout, reason: ShedReason) -> None:
        # select() fails on descriptors above 1023.
        poll = select.poll()
        poll.register(self, event)
        started_ns = time.monotonic_ns()
        remaining_ns = timeout_budget.remaining_ns
        if (
            event == select.POLLOUT
            and self._write_deadline_ns is not None
            and self._write_deadline_ns - started_ns < remaining_ns
        ):
            remaining_ns, reason = self._write_deadline_ns - started_ns, ShedReason.STREAM_TOO_LONG
        if remaining_ns <= 0:
            raise self._shed(reason)
        remaining_ms = remaining_ns // _NANOS_PER_MS
        timeout = self._timeout_seconds
        wait_ms = remaining_ms if timeout is None else min(remaining_ms, int(timeout * _MS_PER_SECOND))
        with self._thread_slot():
            is_ready = poll.poll(wait_ms)
        timeout_budget.consume(time.monotonic_ns() - started_ns)
        if not is_ready:
            # A shorter timeout is the server's own (gunicorn drains unread bodies): then the client is not slow.
            raise self._shed(reason) if wait_ms == remaining_ms else TimeoutError

    @contextmanager
    def _thread_slot(self) -> Iterator[None]:
        if self._permit is not None and self._permit.is_held:
            yield
            return
        use = ResourceUse.ANONYMOUS_CLIENT if self.account_id == ANONYMOUS else ResourceUse.AUTHENTICATED_CLIENT
        with self._hooks.threads.try_acquire(use, self.account_id) as acquired:
            if not acquired:
                raise self._shed(ShedReason.TOO_MANY_WAITING)
            yield

    @property
    def decoded_limit(self) -> int:
        """The most memory that one request may reserve for its decoded body."""
        return self._hooks.bodies.capacity(ResourceUse.BODY) // 2

    def reserve_decoded(self, count: int) -> None:
        """Reserve memory for a decoded body until `release_decoded`; a repeated call raises the amount to `count`.

        Raises: ConnectionShed.
        """
        account_id, reserved = self._decoded_reservation if self._decoded_reservation[1] else (self.account_id, 0)
        if count <= reserved:
            return
        if not self._hooks.bodies.acquire(ResourceUse.BODY, account_id, count - reserved):
            raise self._shed(ShedReason.BODY_MEMORY_EXHAUSTED)
        self._decoded_reservation = (account_id, count)

    def release_decoded(self) -> None:
        """Release what was reserved. May be repeated."""
        account_id, reserved = self._decoded_reservation
        if reserved:
            self._hooks.bodies.release(ResourceUse.BODY, account_id, reserved)
        self._decoded_reservation = (ANONYMOUS, 0)

    def check_body_fits(self, count: int) -> None:
        """Check that a body of this size fits into the free memory. Raises: ConnectionShed.

        Nothing is reserved: announcing a length costs the client nothing.
        """
        if not self._hooks.bodies.acquire(ResourceUse.BODY, self.account_id, count):
            raise self._shed(ShedReason.BODY_MEMORY_EXHAUSTED)
        self._hooks.bodies.release(ResourceUse.BODY, self.account_id, count)

    def reserve_body(self, count: int) -> None:
        """Reserve memory for bytes of a body until the end of the request. Raises: ConnectionShed."""
        if not self._hooks.bodies.acquire(ResourceUse.BODY, self.account_id, count):
            raise self._shed(ShedReason.BODY_MEMORY_EXHAUSTED)
        self._body_bytes[self.account_id] += count

    def _shed(self, reason: ShedReason) -> ConnectionShed:
        self._hooks.count_shed(reason)
        _log.warning("connection_shed", reason=reason.value)
        return ConnectionShed(reason)


def client_socket_of(environ: Mapping[str, Any]) -> ClientSocket | None:
    """Return the connection that a request came on; None under another server."""
    found = environ.get("gunicorn.socket")
    return found if isinstance(found, ClientSocket) else None


def attribute_request(environ: Mapping[str, Any], account_id: str) -> None:
    """Count the threads and memory of a request for the account that sent it, no longer for anonymous clients."""
    connection = client_socket_of(environ)
    if connection is not None:
        connection.account_id = account_id
