"""Reading untrusted OpenAPI documents: their content is checked, nothing that they refer to is fetched."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

MAX_BYTES = 1024 * 1024
MAX_DEPTH = 32
MAX_OPERATIONS = 500
MAX_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Specification:
    """A valid document as JSON text, and the endpoints it describes.

    `endpoints` have `method, path, summary, parameters` (each `name, in, required`); `example` is a request that the
    endpoint with the fewest required values would accept (`method, target, body`), or None if there is no endpoint.
    """

    document: str
    endpoints: Sequence[Mapping[str, Any]]
    example: Mapping[str, Any] | None


class SpecificationReader(Protocol):
    """Reads documents, hostile ones included."""

    def read(self, document: str) -> Specification:
        """Check an OpenAPI 3.0 or 3.1 document in JSON and return what it describes.

        Raises: Rejected("invalid") with `details.place` (a JSON pointer) and `details.problem`, including when a limit
        above is exceeded; Unreachable("busy") when too many documents are being read.
        """
