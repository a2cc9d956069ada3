"""Relays an upstream's response to the client, buffered or streamed, and reports its outcome to the paid.

The meter gets the outcome exactly once and before the client gets the end: a buffered response is returned after
it, and so is the last byte of a stream.
"""

from __future__ import annotations

import errno
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from flask import Response
from werkzeug.datastructures import Headers

from app.capacity.limiter import Permit, Quota
from app.errors import UpstreamError, UpstreamTimeout
from app.forwarding import filters
from app.forwarding.filters import WITHHELD, Redactor
from app.payments.paid_call import PaidCall
from app.ports.errors import OutcomeUnknown, PortError
from app.ports.upstream import RelayOutcome, Upstream, UpstreamResponse
from app.state import app_state
from app.web.client_request import ClientRequest

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

# Seconds of the monotonic clock.
Deadline: TypeAlias = float

_MAX_BUFFERED_BYTES = 16 * 2**20
_DRAIN_SECONDS = 10
_FIRST_PIECE_SECONDS = Decimal(1)
_BUFFERED_TYPES = ("application/json", "application/problem+json", "text/html", "text/plain", "application/xml")
_BODYLESS = frozenset({204, 304})
_CONTENT_LENGTH = "Content-Length"
# One line break: at a blank line, some SDKs dispatch an event without data, and fail to parse it.
_KEEP_ALIVE = b": keep-alive\n"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")
_MAX_END_BYTES = 4
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)


class ForwardingOptions(NamedTuple):
    """How a call is sent, and how its response is relayed.

    With `drain_on_disconnect`, a stream is read on for a while after its client disconnects: its end may have its cost.
    """

    upstream: Upstream
    is_streamed: Callable[[UpstreamResponse], bool]
    account_id: str
    quotas: Collection[Quota] = ()
    drain_on_disconnect: bool = False
    secrets: Collection[str] = ()
    screen_error: Callable[[UpstreamResponse], UpstreamResponse] | None = None
    """Takes a response with an error status, and returns the one to relay; it may raise instead."""
    keep_alive_seconds: Decimal = Decimal(0)
    """The silence after which a stream of events gets a comment, so that no proxy drops it; 0: none."""


class RelayedResponse(Response):
    """A response with complete headers, which are written as they are."""

    default_mimetype = None

    def get_wsgi_headers(self, environ: WSGIEnvironment) -> Headers:  # noqa: ARG002 - werkzeug's own signature
        return self.headers


def upstream_error_of(error: PortError) -> UpstreamError | UpstreamTimeout:
    """Return the error for an upstream that gave no response, without its address."""
    if error.reason == "timeout":
        return UpstreamTimeout()
    if error.reason == WITHHELD:
        return UpstreamError(
            "The upstream compressed its response in a form that cannot be relayed, although it was asked not to."
        )
    if isinstance(error, OutcomeUnknown):
        return UpstreamError("The upstream closed the connection before its response was complete.")
    return UpstreamError("The upstream cannot be reached.")


def relay(
    request: ClientRequest, incoming: UpstreamResponse, paid: PaidCall, permit: Permit, options: ForwardingOptions
) -> Response:
    """Return the response to a request, once an upstream's head has arrived; the paid call gets the outcome.

    Raises: UpstreamError, UpstreamTimeout when a buffered response is truncated, or a streamed one before any of it.
    """
    max_seconds = app_state().settings.stream_max_seconds
    deadline = time.monotonic() + max_seconds
    # Before anything is settled: what cannot be relayed must not be charged.
    headers = filters.for_client(incoming.headers, secrets=options.secrets)
    named = {name.lower(): value.lower() for name, value in incoming.headers}
    redactor = Redactor(options.secrets, named.get("content-encoding"))
    is_plain = named.get("content-type", "").startswith("text/event-stream") and "content-encoding" not in named
    stream = _StreamedBody(incoming, paid, permit, redactor, deadline, options=options, has_plain_events=is_plain)
    may_buffer = not options.is_streamed(incoming) and _is_bufferable(request.method, incoming.status, named)
    is_complete = stream.prepare(_MAX_BUFFERED_BYTES if may_buffer else 0)
    body: Iterable[bytes] = stream
    if is_complete:
        permit.release_after_response()
        body = [paid.with_cost(b"".join(stream.buffered))]
        headers += _content_length(request.method, incoming, body[0])
    else:
        paid.stream()
        permit.set_write_deadline(time.monotonic_ns() + max_seconds * 10**9)
        # Proxies in front of this service must not buffer it either.
        headers.append(("X-Accel-Buffering", "no"))
    # None of these is relayed.
    headers += [("X-Gateway-Request-Id", request.id), filters.CONTENT_POLICY, *paid.headers()]
    return RelayedResponse(body, status=incoming.status, headers=Headers(headers), direct_passthrough=True)


def _is_bufferable(method: str, status: int, headers: Mapping[str, str]) -> bool:
    if method == "HEAD" or status in _BODYLESS or headers.get("content-type", "").startswith(_BUFFERED_TYPES):
        return True
    length = headers.get("content-length", "")
    return bool(_LENGTH.fullmatch(length)) and int(length) <= _MAX_BUFFERED_BYTES


def _content_length(method: str, incoming: UpstreamResponse, body: bytes) -> list[tuple[str, str]]:
    """Return the header with the length of a body; of a response to HEAD, as far as it is known."""
    if body:
        return [(_CONTENT_LENGTH, str(len(body)))]
    if incoming.status in _BODYLESS:
        return []
    stated = [each for each in incoming.headers if each[0].lower() == "content-length" and _LENGTH.fullmatch(each[1])]
    return stated[:1] or ([] if method == "HEAD" else [(_CONTENT_LENGTH, "0")])


class _StreamedBody:
    """The body of a response, buffered or streamed. The server calls `close` even if it read nothing."""

    def __init__(
        self, incoming: UpstreamResponse, paid: PaidCall, permit: Permit, redactor: Redactor, deadline: Deadline,
        *, options: ForwardingOptions, has_plain_events: bool,
    ) -> None:  # fmt: skip
        self._incoming = incoming
        self._paid = paid
        self._redactor = redactor
        self._permit = permit
        self._deadline = deadline
        self._drain_on_disconnect = options.drain_on_disconnect
        self._keep_alive_seconds = options.keep_alive_seconds if has_plain_events else Decimal(0)
        self._last_relayed = b""
        self._ended = False
        self.buffered: deque[bytes] = deque()

    def prepare(self, max_bytes: int) -> bool:
        """Read up to so many bytes, or if 0 only the first piece; settle the call and return True if that is all.

        A first piece that does not come soon is not waited for. The server sends the head with what was read, so that
        what breaks off before can be answered with an error.
        """
        size = 0
        try:
            while piece := self._incoming_piece(self._deadline, None if max_bytes else _FIRST_PIECE_SECONDS):
                self.buffered.append(self._relayed(piece))
                size += len(piece)
                if size > max_bytes:
                    return False
            if piece is None:
                return False
            self.buffered.append(self._rest())
        except BaseException as error:
            self._fail(error)
            raise
        self._paid.end(RelayOutcome.COMPLETE)
        return True

    def _fail(self, error: BaseException) -> None:
        """End a call before its response was relayed. Raises: UpstreamError, UpstreamTimeout if the upstream failed."""
        self._incoming.close()
        self._paid.end(_outcome_of(error))
        if isinstance(error, OutcomeUnknown):
            raise upstream_error_of(error) from None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        while True:
            if self.buffered:
                piece = self.buffered.popleft()
            elif self._ended:
                raise StopIteration
            else:
                piece = self._read()
            if piece:
                return piece

    def close(self) -> None:
        self._end(self._drain() if self._drain_on_disconnect and not self._ended else RelayOutcome.CLIENT_DISCONNECTED)

    def _drain(self) -> RelayOutcome:
        """Read on for a while after the client has disconnected: the end of a response states its cost."""
        deadline = min(self._deadline, time.monotonic() + _DRAIN_SECONDS)
        # A read lasts as long as an upstream may be silent; aborting the exchange ends it.
        abort_timer = threading.Timer(max(0.0, deadline - time.monotonic()), self._incoming.abort)
        abort_timer.daemon = True
        abort_timer.start()
        size = 0
        try:
            while piece := self._incoming_piece(deadline):
                self._paid.feed(piece)
                size += len(piece)
                if size > _MAX_BUFFERED_BYTES:
                    return RelayOutcome.CLIENT_DISCONNECTED
            self._paid.finish()
        except OutcomeUnknown:
            return RelayOutcome.CLIENT_DISCONNECTED
        finally:
            abort_timer.cancel()
        return RelayOutcome.COMPLETE

    def _read(self) -> bytes:
        try:
            piece = self._incoming_piece(self._deadline, self._keep_alive_seconds)
            if piece or piece is None:
                return self._relayed(piece)
            rest = self._rest()
        except OutcomeUnknown as error:
            self._end(_outcome_of(error))
            # The server then closes the connection without the final chunk, so that the client sees the truncation.
            # It logs an error without this number as one of its own.
            raise ConnectionResetError(errno.ECONNRESET, "The upstream's stream was interrupted.") from None
        self._end(RelayOutcome.COMPLETE)
        return self._paid.with_cost(rest)

    def _relayed(self, piece: bytes | None) -> bytes:
        """Return what the client gets of a piece, or after silence."""
        if piece is None:
            # It renews the lease of the hold.
            self._paid.feed(b"")
            return _KEEP_ALIVE if self._is_between_events() else b""
        relayed = self._redactor.feed(self._paid.feed(piece))
        is_comment = relayed.startswith(b":") and relayed.find(b"\n") == len(relayed) - 1
        if self._keep_alive_seconds and relayed and not (is_comment and self._is_between_events()):
            is_short = len(relayed) < _MAX_END_BYTES
            self._last_relayed = self._last_relayed[-_MAX_END_BYTES:] + relayed if is_short else relayed
        return relayed

    def _is_between_events(self) -> bool:
        """Return whether a comment would stand between events, not inside one that the client has begun to read."""
        return not self._last_relayed or self._last_relayed.endswith(_EVENT_ENDS)

    def _incoming_piece(self, deadline: Deadline, silence_seconds: Decimal | None = None) -> bytes | None:
        """Read a piece; None if none arrives for this time. Raises: OutcomeUnknown, including after the deadline."""
        piece = self._incoming.read_within(silence_seconds) if silence_seconds else self._incoming.read()
        if time.monotonic() > deadline:
            raise OutcomeUnknown("timeout")
        return piece

    def _rest(self) -> bytes:
        return self._redactor.feed(self._paid.finish()) + self._redactor.finish()

    def _end(self, outcome: RelayOutcome) -> None:
        if self._ended:
            return
        self._ended = True
        try:
            self._incoming.close()
            self._paid.end(outcome)
        finally:
            self._permit.release_after_response()


def _outcome_of(error: BaseException) -> RelayOutcome:
    timed_out = isinstance(error, OutcomeUnknown) and error.reason == "timeout"
    return RelayOutcome.TIMEOUT if timed_out else RelayOutcome.TRUNCATED
