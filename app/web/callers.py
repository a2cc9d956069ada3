"""A caller's connection, on which a thread waits for so long only, and only so many threads at once.

Python's sockets count their patience for each byte anew, so that a caller who drips would hold a thread for as long
as it likes. Here it is used up by waiting and comes back with bytes, but never above what it was at first. Who is
let go leaves a trace.
"""

from __future__ import annotations

import errno
import select
import socket
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self

import structlog

from app.core import tallies
from app.errors import ErrorCode, Overloaded, ServiceError
from app.web.budgets import STRANGERS, Budget, Use

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_log = structlog.get_logger(__name__)

READING_MS = 30_000
WRITING_MS = 60_000
BYTES_PER_SECOND = 8192
_MS = 1000
_NANOS_PER_MS = 1_000_000
_NANOS = 1_000_000_000
_RETRY_SECONDS = 2


class HeadTooLarge(ServiceError):
    """The request line or the headers are larger than any request's."""

    code = ErrorCode.HEAD_TOO_LARGE
    default_message = "The request line or the headers are too large: 8190 bytes for each line, 100 headers."


class RequestTimeout(ServiceError):
    """The request did not arrive in the time that it may take; nothing was done."""

    code = ErrorCode.REQUEST_TIMEOUT
    default_message = "The request took too long to arrive; nothing was done."


class Why(StrEnum):
    """Why a caller was let go."""

    SENDS_SLOWLY = "sends_slowly"
    READS_SLOWLY = "reads_slowly"
    STREAM_TOO_LONG = "stream_too_long"
    CROWD = "too_many_wait"
    BODIES = "bodies_too_large_together"
    RESTED = "rested"
    HALF_SENT = "half_sent"


class LetGoError(TimeoutError):
    """The caller sent or read too little for too long, or too many others do already."""

    def __init__(self, why: Why) -> None:
        # Named as what servers meet every day and need not write down: the connection is as good as lost.
        super().__init__(errno.ECONNRESET, f"the caller is let go: {why.value}")
        self.why = why

    @property
    def failure(self) -> ServiceError:
        """What the caller is told where it still can be told."""
        if self.why is Why.BODIES:
            return Overloaded(
                "The bodies of all present requests are too large together.",
                retry_after_seconds=_RETRY_SECONDS,
            )
        return RequestTimeout()


class Lane(Protocol):
    """A place of the budget that a whole request has."""

    @property
    def is_held(self) -> bool:
        """Tell whether it has it still."""
        ...

    def leave(self) -> None:
        """Give it back. May be repeated."""
        ...


@dataclass(slots=True)
class _Patience:
    """How long a caller is still waited for, in one direction."""

    most_ns: int
    left_ns: int

    @classmethod
    def of(cls, milliseconds: int) -> Self:
        return cls(milliseconds * _NANOS_PER_MS, milliseconds * _NANOS_PER_MS)

    def waited(self, nanoseconds: int) -> None:
        self.left_ns -= nanoseconds

    def passed(self, count: int) -> None:
        self.left_ns = min(self.most_ns, self.left_ns + count * _NANOS // BYTES_PER_SECOND)


class CallerSocket(socket.socket):
    """A connection that was accepted. Waiting for the caller is counted; the time that we take ourselves is not."""

    whose: str
    """The account whose request it is, once that is known: places and memory are its own."""

    _threads: Budget
    _bodies: Budget
    _reading: _Patience
    _writing: _Patience
    _kept: Counter[str]
    _lane: Lane | None
    _end_at: int | None

    @classmethod
    def of(cls, accepted: socket.socket, threads: Budget, bodies: Budget) -> Self:
        """Take a connection over, to wait in the threads of one budget and to read bodies into the other."""
        made = cls(accepted.family, accepted.type, accepted.proto, fileno=accepted.detach())
        made._threads, made._bodies = threads, bodies
        made.begin()
        return made

    def begin(self) -> None:
        """Begin to count anew: a request's time is its own."""
        self._reading, self._writing = _Patience.of(READING_MS), _Patience.of(WRITING_MS)
        self.whose = STRANGERS
        self._kept = Counter()
        self._lane = None
        self._end_at = None

    def end(self) -> None:
        """Give back what the request had, now that it is answered."""
        if self._lane is not None:
            self._lane.leave()
        for whose, count in self._kept.items():
            self._bodies.give_back(Use.BODY, whose, count)
        self._kept.clear()

    def hold(self, lane: Lane) -> None:
        """Have a lane until the end of the request, unless it is left before. Waiting in it needs no other place."""
        self._lane = lane

    def end_at(self, moment: int) -> None:
        """Let the caller read until a moment of the monotonic clock (ns), however well it reads."""
        self._end_at = moment

    def recv(self, size: int, flags: int = 0, /) -> bytes:
        """Read what there is, waiting for it unless the socket is not to wait. Raises: LetGoError."""
        is_waiting = self.gettimeout() != 0
        if is_waiting:
            self._await(select.POLLIN, self._reading, Why.SENDS_SLOWLY)
        piece = super().recv(size, flags)
        self._reading.passed(len(piece))
        if is_waiting:
            self._keep(len(piece))
        return piece

    def send(self, data: ReadableBuffer, flags: int = 0, /) -> int:
        """Write some of it, waiting likewise. Raises: LetGoError."""
        while True:
            try:
                sent = super().send(data, flags | socket.MSG_DONTWAIT)
            except BlockingIOError:
                if self.gettimeout() == 0:
                    raise
                self._await(select.POLLOUT, self._writing, Why.READS_SLOWLY)
                continue
            self._writing.passed(sent)
            return sent

    def sendall(self, data: ReadableBuffer, flags: int = 0, /) -> None:
        """Write all of it, waiting likewise. Raises: LetGoError."""
        left = memoryview(data).cast("B")
        while left:
            left = left[self.send(left, flags) :]

    def _await(self, event: int, patience: _Patience, why: Why) -> None:
        # Not select(), which knows no descriptors above 1023.
        poll = select.poll()
        poll.register(self, event)
        if poll.poll(0):
            return
        began = time.monotonic_ns()
        left_ns = patience.left_ns
        if event == select.POLLOUT and self._end_at is not None and self._end_at - began < left_ns:
            left_ns, why = self._end_at - began, Why.STREAM_TOO_LONG
        if left_ns <= 0:
            raise _let_go(why)
        left_ms = left_ns // _NANOS_PER_MS
        timeout = self.gettimeout()
        most_ms = left_ms if timeout is None else min(left_ms, int(timeout * _MS))
        with self._place():
            is_ready = poll.poll(most_ms)
        patience.waited(time.monotonic_ns() - began)
        if not is_ready:
            # Who is given less time by the server itself, to send what nobody needs, is not let go for slowness.
            raise _let_go(why) if most_ms == left_ms else TimeoutError

    @contextmanager
    def _place(self) -> Iterator[None]:
        if self._lane is not None and self._lane.is_held:
            yield
            return
        use = Use.STRANGER if self.whose == STRANGERS else Use.CALLER
        with self._threads.place(use, self.whose) as has_place:
            if not has_place:
                raise _let_go(Why.CROWD)
            yield

    def _keep(self, count: int) -> None:
        if not self._bodies.take(Use.BODY, self.whose, count):
            raise _let_go(Why.BODIES)
        self._kept[self.whose] += count


def present(environ: Mapping[str, Any]) -> CallerSocket | None:
    """Return the connection that a request came on; None under another server."""
    found = environ.get("gunicorn.socket")
    return found if isinstance(found, CallerSocket) else None


def failure_of(error: BaseException) -> ServiceError | None:
    """Return what a caller is told who is let go; None where that is not what happened."""
    # The framework takes whoever sends no more for gone, and says so in an exception of its own.
    for one in (error, error.__context__):
        if isinstance(one, LetGoError):
            return one.failure
    return RequestTimeout() if isinstance(error, TimeoutError) else None


def count_let_go(why: Why) -> None:
    """Add to the counter of those who were let go."""
    tallies.count("callers_let_go", why=why.value)


def _let_go(why: Why) -> LetGoError:
    count_let_go(why)
    _log.warning("caller_let_go", reason=why.value)
    return LetGoError(why)
