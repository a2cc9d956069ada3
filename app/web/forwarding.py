"""Relays an upstream's answer to the caller, whole or as it arrives, and tells the call's owner how it ended.

The owner hears of the end exactly once, whatever happens, and before the caller can: a plain answer is given out
after it, a stream's last byte likewise.
"""

from __future__ import annotations

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, TypeAlias

from flask import Response, current_app, request

from app.errors import Overloaded, UpstreamError, UpstreamTimeout
from app.ports import provider
from app.ports.errors import OutcomeUnknown, PortError
from app.ports.upstream import Incoming
from app.web import budgets, callers, relayed_headers
from app.web.budgets import Budget, Use
from app.web.callers import CallerSocket

# Seconds of the monotonic clock.
Deadline: TypeAlias = float

_EXTENSION = "forwarding_lanes"
_LEAST_SHARE = 4
_RETRY_SECONDS = 2
_MAX_WHOLE_BYTES = 16 * 2**20
_DRAIN_SECONDS = 10
_WHOLE_TYPES = ("application/json", "application/problem+json", "text/html", "text/plain", "application/xml")
_BODYLESS = frozenset({204, 304})
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)


class Ending(StrEnum):
    """How an answer ended."""

    COMPLETE = "complete"
    BROKEN = "broken"
    TIMEOUT = "timeout"
    CALLER_GONE = "caller_gone"


class Watcher(Protocol):
    """The owner of a forwarded call. Its verbs do not raise; they are called by one thread at a time."""

    def feed(self, piece: bytes) -> bytes:
        """See a piece of the answer; return what the caller gets of it."""
        ...

    def finish(self) -> bytes:
        """Return what is left to be passed on, once the upstream's last byte was seen."""
        ...

    def end(self, ending: Ending) -> None:
        """Settle the call."""
        ...

    def stream(self) -> None:
        """Learn that the answer is passed on as it arrives, and not whole."""
        ...

    def headers(self) -> Collection[tuple[str, str]]:
        """Return our own headers, for a plain answer after its end, for a stream at its start."""
        ...


@dataclass(frozen=True, slots=True)
class Share:
    """Somebody who has at most one part in so many of all lanes at once, whoever else needs none."""

    key: str
    one_in: int
    whom: str
    """Who that is, to complete the sentence that refuses a call for it."""


class Lanes:
    """Whose calls a process forwards, of as many as its budget of threads has places for."""

    def __init__(self, threads: Budget) -> None:
        """Let calls draw from a budget."""
        self._threads = threads
        self._most = threads.most(Use.UPSTREAM)
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def enter(self, whose: str, shares: Collection[Share]) -> Lane:
        """Take a lane. Raises: Overloaded when all are taken, or all that one of the shares allows."""
        with self._lock:
            for share in shares:
                # Where there are few lanes at all, a handful is everybody's.
                if self._taken[share.key] >= max(_LEAST_SHARE, self._most // share.one_in):
                    raise _too_many(f" {share.whom}")
            if not self._threads.take(Use.UPSTREAM, whose):
                raise _too_many("")
            self._taken.update(share.key for share in shares)
        return Lane(self, whose, shares)

    def give_back(self, whose: str, shares: Collection[Share]) -> None:
        """Free a lane."""
        with self._lock:
            self._threads.give_back(Use.UPSTREAM, whose)
            for share in shares:
                self._taken[share.key] -= 1
                if not self._taken[share.key]:
                    del self._taken[share.key]


def _too_many(whom: str) -> Overloaded:
    return Overloaded(f"Too many calls{whom} are being forwarded.", retry_after_seconds=_RETRY_SECONDS)


class Lane:
    """One lane, to be left once on every way out."""

    def __init__(self, lanes: Lanes, whose: str, shares: Collection[Share]) -> None:
        self._lanes: Lanes | None = lanes
        self._whose = whose
        self._shares = shares
        self._caller: CallerSocket | None = None

    @property
    def is_held(self) -> bool:
        """Tell whether it has not been left."""
        return self._lanes is not None

    def lend_to(self, caller: CallerSocket) -> None:
        """Let a caller's connection have it until the answer is written, which takes the same thread."""
        self._caller = caller
        caller.hold(self)

    def end_at(self, moment: int) -> None:
        """Bound the time in which the caller may read, where the server counts it (ns of the monotonic clock)."""
        if self._caller is not None:
            self._caller.end_at(moment)

    def leave(self) -> None:
        """Give the lane back. May be repeated."""
        lanes, self._lanes = self._lanes, None
        if lanes is not None:
            lanes.give_back(self._whose, self._shares)

    def leave_with_answer(self) -> None:
        """Give it back once the answer is written, for which a caller who was lent it sees; else at once."""
        if self._caller is None:
            self.leave()


def open_lanes() -> None:
    """Make this application's lanes; the factory calls it once."""
    current_app.extensions[_EXTENSION] = Lanes(budgets.threads())


def enter_lane(whose: str, *shares: Share) -> Lane:
    """Take a lane of the running application for somebody. Raises: Overloaded."""
    lanes: Lanes = current_app.extensions[_EXTENSION]
    lane = lanes.enter(whose, shares)
    caller = callers.present(request.environ)
    if caller is not None:
        lane.lend_to(caller)
    return lane


def failure_of(error: PortError) -> UpstreamError | UpstreamTimeout:
    """Return what the caller is told about an upstream that gave no answer. Says no address."""
    if error.reason == "timeout":
        return UpstreamTimeout()
    if isinstance(error, OutcomeUnknown):
        return UpstreamError("The upstream broke off before its answer was complete.")
    return UpstreamError("The upstream cannot be reached.")


def relay(
    incoming: Incoming,
    watcher: Watcher,
    lane: Lane,
    *,
    streamed: bool,
    drains: bool = False,
    secrets: Collection[str] = (),
) -> Response:
    """Make the response of an answer whose head has arrived. From here on the watcher hears of the end.

    With `drains`, a stream that its caller leaves is read on for a while: what it cost may stand at its end.

    Raises: UpstreamError, UpstreamTimeout when a plain answer breaks off.
    """
    most_seconds = provider.settings().stream_max_seconds
    deadline = time.monotonic() + most_seconds
    head: deque[bytes] = deque()
    # Before anything is settled: what cannot be passed on must not be paid for.
    headers = relayed_headers.for_caller(incoming.headers, secrets=secrets)
    whole = not streamed and _is_plain(incoming) and _read_whole(incoming, watcher, head, deadline)
    # The response takes these headers over and adds a type where there is none; what has no type keeps none.
    has_type = "Content-Type" in headers
    response: Response
    if whole:
        lane.leave_with_answer()
        body = b"".join(head)
        for secret in secrets:
            if secret and secret.encode() in body:
                body = body.replace(secret.encode(), "…".encode())
        response = Response(body, status=incoming.status, headers=headers)
        _mend_length(response, incoming, body)
    else:
        watcher.stream()
        lane.end_at(time.monotonic_ns() + most_seconds * 10**9)
        stream = _Stream(incoming, watcher, lane, head, deadline, drains=drains)
        response = Response(stream, status=incoming.status, headers=headers, direct_passthrough=True)
        # Proxies in front of us must not collect it either.
        response.headers["X-Accel-Buffering"] = "no"
    if not has_type:
        response.headers.pop("Content-Type", None)
    for name, value in watcher.headers():
        response.headers[name] = value
    return response


def _is_plain(incoming: Incoming) -> bool:
    kinds = {name.lower(): value.lower() for name, value in incoming.headers}
    if (
        request.method == "HEAD"
        or incoming.status in _BODYLESS
        or kinds.get("content-type", "").startswith(_WHOLE_TYPES)
    ):
        return True
    length = kinds.get("content-length", "")
    return bool(_LENGTH.fullmatch(length)) and int(length) <= _MAX_WHOLE_BYTES


def _read_whole(incoming: Incoming, watcher: Watcher, head: deque[bytes], deadline: Deadline) -> bool:
    """Read a plain answer and settle it; tell whether it fits, so that it is whole."""
    size = 0
    try:
        while piece := _read_before(deadline, incoming):
            head.append(watcher.feed(piece))
            size += len(piece)
            if size > _MAX_WHOLE_BYTES:
                return False
        head.append(watcher.finish())
    except OutcomeUnknown as error:
        incoming.close()
        watcher.end(Ending.TIMEOUT if error.reason == "timeout" else Ending.BROKEN)
        raise failure_of(error) from None
    except BaseException:
        incoming.close()
        watcher.end(Ending.BROKEN)
        raise
    watcher.end(Ending.COMPLETE)
    return True


def _read_before(deadline: Deadline, incoming: Incoming) -> bytes:
    """Read a piece. Raises: OutcomeUnknown, also where the answer takes longer than any may."""
    piece = incoming.read()
    if time.monotonic() > deadline:
        raise OutcomeUnknown("timeout")
    return piece


def _mend_length(response: Response, incoming: Incoming, body: bytes) -> None:
    response.headers.pop("Content-Length", None)
    lengths = [
        value
        for name, value in incoming.headers
        if name.lower() == "content-length" and _LENGTH.fullmatch(value)
    ]
    if body:
        response.headers["Content-Length"] = str(len(body))
    elif lengths and incoming.status not in _BODYLESS:
        # The answer to HEAD tells the length of what it does not carry.
        response.headers["Content-Length"] = lengths[0]
    elif request.method == "HEAD":
        # Nobody has said how long it is, and nothing is a length.
        response.automatically_set_content_length = False
    elif incoming.status not in _BODYLESS:
        response.headers["Content-Length"] = "0"


class _Stream:
    """The body of a streamed answer. The server calls `close` whether or not it ever asked for a piece."""

    def __init__(
        self,
        incoming: Incoming,
        watcher: Watcher,
        lane: Lane,
        head: deque[bytes],
        deadline: Deadline,
        *,
        drains: bool,
    ) -> None:
        self._incoming = incoming
        self._watcher = watcher
        self._lane = lane
        self._head = head
        self._deadline = deadline
        self._drains = drains
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            if self._head:
                piece = self._head.popleft()
            elif self._ended:
                raise StopIteration
            else:
                piece = self._read()
            if piece:
                return piece

    def close(self) -> None:
        self._end(self._drained() if self._drains and not self._ended else Ending.CALLER_GONE)

    def _drained(self) -> Ending:
        """Read on for a while after the caller has gone: what it cost stands at the end of an answer."""
        until = min(self._deadline, time.monotonic() + _DRAIN_SECONDS)
        # A read waits for as long as an upstream may be silent; cutting the exchange off ends the wait.
        cut = threading.Timer(max(0.0, until - time.monotonic()), self._incoming.abort)
        cut.daemon = True
        cut.start()
        size = 0
        try:
            while piece := _read_before(until, self._incoming):
                self._watcher.feed(piece)
                size += len(piece)
                if size > _MAX_WHOLE_BYTES:
                    return Ending.CALLER_GONE
            self._watcher.finish()
        except OutcomeUnknown:
            return Ending.CALLER_GONE
        finally:
            cut.cancel()
        return Ending.COMPLETE

    def _read(self) -> bytes:
        try:
            piece = _read_before(self._deadline, self._incoming)
        except OutcomeUnknown as error:
            self._end(Ending.TIMEOUT if error.reason == "timeout" else Ending.BROKEN)
            # Servers end the connection for this without the mark of a complete answer: the caller must see the cut.
            raise ConnectionResetError from None
        if piece:
            return self._watcher.feed(piece)
        rest = self._watcher.finish()
        self._end(Ending.COMPLETE)
        return rest

    def _end(self, ending: Ending) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._incoming.close()
            self._watcher.end(ending)
        finally:
            self._lane.leave_with_answer()
