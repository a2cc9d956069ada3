"""What the two processes say to each other: one JSON object a line, over the child's standard input and output.

The child reports and asks, the parent answers what was asked. A line that is not one of these ends the errand.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from app.ports.shopper import Errand, Failed, ShippingAddress, Trouble

MAX_LINE = 16 * 1024 * 1024


class Closed(Exception):
    """The other side is gone."""


def write(stream: IO[bytes], kind: str, **values: Any) -> None:
    """Send a message. Raises: Closed."""
    try:
        stream.write(json.dumps({"kind": kind, **values}).encode() + b"\n")
        stream.flush()
    except (OSError, ValueError):
        raise Closed from None


def read(stream: IO[bytes]) -> Mapping[str, Any]:
    """Wait for a message. Raises: Closed."""
    line = stream.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        raise Closed
    return parse(line)


def parse(line: bytes) -> Mapping[str, Any]:
    """Read a message. Raises: ValueError."""
    message = json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("not a message")  # noqa: TRY004 - one kind of bad message
    return message


def errand_values(errand: Errand) -> dict[str, Any]:
    """Return an errand as JSON."""
    return asdict(errand)


def errand_of(values: Mapping[str, Any]) -> Errand:
    """Make an errand from JSON."""
    address = ShippingAddress(**values["address"])
    return Errand(**{**values, "address": address, "allowed_domains": tuple(values["allowed_domains"])})


def picture(png: bytes) -> str:
    """Return a picture as text."""
    return base64.b64encode(png).decode()


def png_of(text: str) -> bytes:
    """Read a picture. Raises: ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not a picture") from None


def failure_values(failure: Failed) -> dict[str, Any]:
    """Return a failure as JSON."""
    return {
        "trouble": failure.trouble.value,
        "message": failure.message,
        "missing": list(failure.missing),
        "choices": list(failure.choices),
    }


def failure_of(values: Mapping[str, Any]) -> Failed:
    """Make a failure from JSON. Raises: ValueError."""
    return Failed(
        Trouble(values["trouble"]),
        str(values["message"]),
        missing=tuple(map(str, values["missing"])),
        choices=tuple(map(str, values["choices"])),
    )
