"""A caller's connection, on which a thread waits for so long only, and only so many threads at once.

Python's sockets count their patience for each byte anew, so that a caller who drips would hold a thread for as long
as it likes. Here time is allowed for a whole request, more for more bytes.
"""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from app.errors import ErrorCode, ServiceError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

READING_MS = 30_000
WRITING_MS = 60_000
BYTES_PER_SECOND = 8192
_MS = 1000
_NANOS_PER_MS = 1_000_000


class HeadTooLarge(ServiceError):
    """The request line or the headers are larger than any request's."""

    code = ErrorCode.HEAD_TOO_LARGE
    default_message = "The request line or the headers are too large: 8190 bytes for each line, 100 headers."


class RequestTimeout(ServiceError):
    """The request did not arrive in the time that it may take; nothing was done."""

    code = ErrorCode.REQUEST_TIMEOUT
    default_message = "The request took too long to arrive; nothing was done."


class TooSlowError(TimeoutError):
    """The caller sent or read too little for too long, or too many others do already."""

    def __init__(self) -> None:
        # Named as what servers meet every day and need not write down: the connection is as good as lost.
        super().__init__(errno.ECONNRESET, "the caller is too slow")


class Company:
    """How many threads wait at once for callers to send, or to read: so few that others are still served."""

    def __init__(self, most: int) -> None:
        """Let so many wait."""
        self._places = threading.BoundedSemaphore(most)

    def __enter__(self) -> None:
        """Take a place. Raises: TooSlowError when there is none."""
        if not self._places.acquire(blocking=False):
            raise TooSlowError

    def __exit__(self, *_failure: object) -> None:
        """Give it back."""
        self._places.release()


@dataclass(slots=True)
class _Pace:
    """How a request goes in one direction: what has passed, and how long it was waited for in all."""

    company: Company
    allowed_ms: int
    passed_bytes: int = 0
    waited_ms: int = 0

    @property
    def left_ms(self) -> int:
        return self.allowed_ms + self.passed_bytes * _MS // BYTES_PER_SECOND - self.waited_ms


class CallerSocket(socket.socket):
    """A connection that was accepted. Waiting for the caller is counted; the time that we take ourselves is not."""

    _readers: Company
    _writers: Company
    _reading: _Pace
    _writing: _Pace

    @classmethod
    def of(cls, accepted: socket.socket, readers: Company, writers: Company) -> Self:
        """Take a connection over. Anybody can be waited for to send; that is not to cut answers that were paid for."""
        made = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        made._readers, made._writers = readers, writers
        made.begin()
        return made

    def begin(self) -> None:
        """Begin to count anew: a request's time is its own."""
        self._reading = _Pace(self._readers, READING_MS)
        self._writing = _Pace(self._writers, WRITING_MS)

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read what there is, waiting for it unless the socket is not to wait. Raises: TooSlowError."""
        if self.gettimeout() != 0:
            self._await(select.POLLIN, self._reading)
        piece = super().recv(size, flags)
        self._reading.passed_bytes += len(piece)
        return piece

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Write all of it, waiting likewise. Raises: TooSlowError."""
        left = memoryview(data).cast("B")
        while left:
            try:
                sent = super().send(left, flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                if self.gettimeout() == 0:
                    raise
                self._await(select.POLLOUT, self._writing)
                continue
            self._writing.passed_bytes += sent
            left = left[sent:]

    def _await(self, event: int, pace: _Pace) -> None:
        # Not select(), which knows no descriptors above 1023.
        poll = select.poll()
        poll.register(self, event)
        if poll.poll(0):
            return
        timeout = self.gettimeout()
        allowed_ms = pace.left_ms if timeout is None else min(pace.left_ms, int(timeout * _MS))
        if allowed_ms <= 0:
            raise TooSlowError
        began = time.monotonic_ns()
        with pace.company:
            ready = poll.poll(allowed_ms)
        pace.waited_ms += (time.monotonic_ns() - began) // _NANOS_PER_MS
        if not ready:
            raise TooSlowError
