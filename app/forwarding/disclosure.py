"""The client's API key in what is sent to others, who may have asked for it."""

from __future__ import annotations

from urllib.parse import unquote

from app.errors import InvalidInput
from app.ports.upstream import Headers


def reject_key(key: str, *, target: str, headers: Headers, body: bytes) -> None:
    """Refuse a request with the client's key in its address, headers or body.

    A precaution, not a protection: a key in Base64, escaped twice or compressed is not found.

    Raises: InvalidInput.
    """
    leaks = {
        "address": key in unquote(target),
        "headers": any(key in value for _, value in headers),
        "body": key.encode() in body,
    }
    for place, is_leaked in leaks.items():
        if is_leaked:
            raise InvalidInput(
                f"The {place} of this request would disclose your API key to another service. Leave it out.",
                details={"fields": {place: ["must not contain your key"]}},
            )
