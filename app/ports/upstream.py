"""HTTP services that calls are forwarded to: one exchange at a time, the answer read as it arrives.

The target goes out byte for byte, redirects are returned and nothing is ever sent twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

Headers = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A request; `target` is the raw path and query. Addresses may hold a key, so none of it is ever shown."""

    method: str
    origin: str = field(repr=False)
    target: str = field(repr=False)
    headers: Headers = field(repr=False)
    body: bytes = field(repr=False, default=b"")


class Incoming(Protocol):
    """An answer whose head has arrived. Close it on every way out."""

    @property
    def status(self) -> int:
        """The status code."""
        ...

    @property
    def headers(self) -> Headers:
        """All header lines in their order, names as the upstream wrote them."""
        ...

    def read(self) -> bytes:
        """Return what has arrived, waiting for at least one byte; empty at the end.

        Raises: OutcomeUnknown("timeout") after silence, OutcomeUnknown("broken") when it was cut off.
        """
        ...

    def abort(self) -> None:
        """Make a `read` that waits in another thread fail as broken. The exchange must be closed all the same."""
        ...

    def close(self) -> None:
        """End the exchange; an answer that was not read to its end is cut off. May be repeated."""
        ...


class Upstream(Protocol):
    """Sends requests to services."""

    def send(self, request: Outgoing) -> Incoming:
        """Send a request once and return its answer when the head has arrived.

        Raises: Rejected("address_not_allowed") for an address that must not be reached; Unreachable when
        nothing was sent; OutcomeUnknown("timeout" or "broken") when it was sent and no answer came.
        """
        ...
