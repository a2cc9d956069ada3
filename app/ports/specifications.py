"""Reading the OpenAPI documents of strangers: what they say is checked, nothing that they point to is fetched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_OPERATIONS = 500
MAX_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Specification:
    """A valid document as JSON text, and what it offers.

    `endpoints` have `method, path, summary, parameters` (each `name, in, required`); `example` is a request that
    the first endpoint would take (`method, target, body`), None where there is no endpoint.
    """

    document: str
    endpoints: Sequence[Mapping[str, Any]]
    example: Mapping[str, Any] | None


class Specifications(Protocol):
    """Reads documents, whatever their writer had in mind."""

    def read(self, document: str) -> Specification:
        """Check an OpenAPI 3.0 or 3.1 document in JSON and return what it offers.

        Raises: Rejected("invalid") with `details.place` (a JSON pointer) and `details.problem`, also for what
        is beyond the limits above; Unreachable("busy") when too many are being read.
        """
        ...
