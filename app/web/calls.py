"""What is alike in every forwarded call, whoever pays for it: its body, its lane, its exchange with the upstream."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from flask import Response, request

from app.errors import PayloadTooLarge, ServiceError
from app.ports.errors import PortError
from app.ports.upstream import Incoming, Outgoing, Upstream
from app.web import forwarding
from app.web.forwarding import Lane, Share, Watcher
from app.web.parsing import body_of

MAX_BODY_BYTES = 32 * 2**20
_KEY = "Idempotency-Key"


class Meter(Watcher, Protocol):
    """Who pays for a call: `begin`; then `unanswered`, or `answered` and what a watcher hears."""

    def begin(self) -> None:
        """Take the money for the call."""
        ...

    def answered(self, incoming: Incoming) -> None:
        """Learn the head of the answer."""
        ...

    def unanswered(self, *, counts: bool) -> None:
        """Give everything back, because the caller gets no answer; `counts` where that is the upstream's fault."""
        ...


@dataclass(frozen=True, slots=True)
class Way:
    """Over what a call goes, and what is done with its answer on the way back."""

    upstream: Upstream
    streamed: Callable[[Incoming], bool]
    whose: str
    shares: Collection[Share] = ()
    drains: bool = False
    secrets: Collection[str] = ()


def body(most: int = MAX_BODY_BYTES) -> bytes:
    """Return the present request's body. Raises: PayloadTooLarge, and what `body_of` does."""
    request.max_content_length = most
    try:
        return body_of(request)
    except PayloadTooLarge:
        raise PayloadTooLarge(f"The request body is too large: at most {most // 2**20} MiB.") from None


def idempotency_key(*scope: str) -> dict[str, str]:
    """Return the header for an upstream: the same word of two callers must not be one request there."""
    key = request.headers.get(_KEY)
    if not key:
        return {}
    scoped = hashlib.sha256("\n".join((*scope, key)).encode()).hexdigest()
    return {_KEY: f"purser-{scoped[:48]}"}


def forward(outgoing: Outgoing, meter: Meter, way: Way) -> Response:
    """Make the call in a lane and relay its answer. Raises: Overloaded, UpstreamError, UpstreamTimeout."""
    lane = forwarding.enter_lane(way.whose, *way.shares)
    try:
        meter.begin()
        return _answered(outgoing, meter, way, lane)
    except BaseException:
        lane.leave()
        raise


def _answered(outgoing: Outgoing, meter: Meter, way: Way, lane: Lane) -> Response:
    try:
        incoming = way.upstream.send(outgoing)
    except PortError as error:
        meter.unanswered(counts=True)
        raise forwarding.failure_of(error) from None
    except BaseException:
        meter.unanswered(counts=False)
        raise
    try:
        meter.answered(incoming)
        return forwarding.relay(
            incoming, meter, lane, streamed=way.streamed(incoming), drains=way.drains, secrets=way.secrets
        )
    except ServiceError:
        raise  # the relay has ended the call
    except BaseException:
        incoming.close()
        meter.unanswered(counts=False)
        raise
