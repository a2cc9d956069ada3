"""HTTP services that calls are forwarded to: one exchange at a time, the response read as it arrives.

The target is sent unchanged, redirects are returned and nothing is ever sent twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from http import HTTPStatus
from typing import Protocol

from app.ports.errors import OutcomeUnknown

Headers = Sequence[tuple[str, str]]


@dataclass(slots=True)
class UpstreamRequest:
    """A request; `target` is the raw path and query. Addresses may contain a key, so none of it is ever shown."""

    method: str
    origin: str = field(repr=False)
    target: str = field(repr=False)
    headers: Headers = field(repr=False)
    body: bytes = field(repr=False, default=b"")
    timeout_seconds: int | Decimal | None = None
    """The time limit of the whole exchange; None is the adapter's, of the head and of each piece."""
    head_seconds: Decimal | None = None
    """The time limit of the head, if it is another."""


class UpstreamResponse(Protocol):
    """A response whose head has arrived. Close it in every case."""

    @property
    def status(self) -> int:
        """The status code."""

    @property
    def headers(self) -> Headers:
        """All header fields in their order, names as the upstream sent them."""

    def read(self) -> bytes:
        """Return what has arrived, at least a byte; empty at the end. Raises: OutcomeUnknown("timeout", "broken")."""

    def read_within(self, seconds: Decimal) -> bytes | None:
        """Return what `read` does, or None if nothing arrives for this time: then call it again, or `read`."""

    def abort(self) -> None:
        """Make a `read` that waits in another thread fail as broken. The exchange must be closed all the same."""

    def close(self) -> None:
        """Close the exchange, abandoning a response that was not read completely. Idempotent."""


def named_headers(response: UpstreamResponse) -> dict[str, str]:
    """Return the header fields of a response by their names in lower case."""
    return {name.lower(): value for name, value in response.headers}


class RelayOutcome(StrEnum):
    COMPLETE = "complete"
    TRUNCATED = "broken"
    TIMEOUT = "timeout"
    CLIENT_DISCONNECTED = "caller_gone"


class Upstream(Protocol):
    """Sends requests to services."""

    def send(self, request: UpstreamRequest) -> UpstreamResponse:
        """Send a request once and return its response when the head has arrived.

        Raises: Rejected("address_not_allowed") for an address that must not be reached; Unreachable when nothing was
        sent; OutcomeUnknown("timeout" or "broken") when it was sent and no response came.
        """


def read_beginning(response: UpstreamResponse, max_bytes: int) -> tuple[bytes, OutcomeUnknown | None]:
    """Read a body until it is longer than this, and close; return what arrived, and why not the rest if it broke."""
    body = bytearray()
    try:
        while len(body) <= max_bytes and (piece := response.read()):
            body += piece
    except OutcomeUnknown as failure:
        return bytes(body), failure
    finally:
        response.close()
    return bytes(body), None


def read_json_text(upstream: Upstream, origin: str, target: str, *, max_bytes: int, seconds: int) -> bytes:
    """Return the body of a small 200, without following redirects. Raises: PortError, ValueError for another answer."""
    headers = [("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "purser")]
    response = upstream.send(UpstreamRequest("GET", origin, target, headers, timeout_seconds=seconds))
    body, failure = read_beginning(response, max_bytes)
    if failure is not None:
        raise failure
    if response.status != HTTPStatus.OK:
        raise ValueError(f"was answered with status {response.status}")
    if len(body) > max_bytes:
        raise ValueError(f"has more than {max_bytes} bytes")
    return body
