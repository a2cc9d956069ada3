"""The messages between the two processes: one JSON object per line, over the child's standard input and output.

The child reports and asks, the parent decides. A line that is not one of these messages ends the purchase.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import IO, Any

from app.core.order_amounts import AmountRole, OrderAmount
from app.ports.shopper import (
    ChoicePurpose,
    ElementCandidate,
    ElementQuestion,
    FailureCode,
    PurchaseFailed,
    PurchaseRequest,
    ShippingAddress,
)

MAX_LINE = 16 * 1024 * 1024
MAX_AMOUNTS = 20
MAX_LABEL = 80
MAX_NANOS = 10**18
MAX_CANDIDATES = 12
MAX_CANDIDATE_TEXT = 200
_ROLES = frozenset({"button", "link", "option"})


class PeerClosed(Exception):
    """The other process has closed its pipe."""


def encode(kind: str, **values: Any) -> bytes:
    """Return a message as a line."""
    return json.dumps({"kind": kind, **values}).encode() + b"\n"


def write(stream: IO[bytes], kind: str, **values: Any) -> None:
    """Send a message. Raises: PeerClosed."""
    try:
        stream.write(encode(kind, **values))
        stream.flush()
    except (OSError, ValueError):
        raise PeerClosed from None


def read(stream: IO[bytes]) -> Mapping[str, Any]:
    """Wait for a message. Raises: PeerClosed."""
    line = stream.readline(MAX_LINE)
    if not line.endswith(b"\n"):
        raise PeerClosed
    return parse(line)


def parse(line: bytes) -> Mapping[str, Any]:
    """Parse a message. Raises: ValueError."""
    message = json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("kind"), str):
        raise ValueError("not a message")  # noqa: TRY004 - one kind of bad message
    return message


def request_to_json(request: PurchaseRequest) -> dict[str, Any]:
    """Return a purchase request as JSON."""
    return asdict(request)


def request_from_json(values: Mapping[str, Any]) -> PurchaseRequest:
    """Return a purchase request from JSON."""
    address = ShippingAddress(**values["address"])
    return PurchaseRequest(**{**values, "address": address, "allowed_domains": tuple(values["allowed_domains"])})


def review_values(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a review or a confirmation from JSON. Raises: ValueError, KeyError, TypeError."""
    values = {name: value for name, value in message.items() if name != "kind"}
    return {**values, "amounts": tuple(_amount(item) for item in values.get("amounts", ())[:MAX_AMOUNTS])}


def _amount(item: Mapping[str, Any]) -> OrderAmount:
    nanos = item["nanos"]
    if type(nanos) is not int or not 0 <= nanos <= MAX_NANOS:
        raise ValueError("not an amount")
    return OrderAmount(AmountRole(item["role"]), str(item["label"])[:MAX_LABEL], nanos)


def question_from_json(values: Mapping[str, Any]) -> ElementQuestion:
    """Return a question from JSON. Raises: ValueError, KeyError, TypeError."""
    candidates = tuple(ElementCandidate(**item) for item in values["candidates"])
    texts = [values["page"], *(text for item in candidates for text in (item.name, item.text))]
    if (
        not 0 < len(candidates) <= MAX_CANDIDATES
        or not all(isinstance(text, str) and len(text) <= MAX_CANDIDATE_TEXT for text in texts)
        or not all(item.role in _ROLES for item in candidates)
    ):
        raise ValueError("not a question")
    return ElementQuestion(values["page"], candidates, ChoicePurpose(values["purpose"]))


def encode_png(png: bytes) -> str:
    """Return an image as base64."""
    return base64.b64encode(png).decode()


def decode_png(text: str) -> bytes:
    """Return an image from base64. Raises: ValueError."""
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError("not base64") from None


def failure_to_json(failure: PurchaseFailed) -> dict[str, Any]:
    """Return a failure as JSON."""
    return {
        "code": failure.code.value,
        "message": failure.message,
        "missing": list(failure.missing),
        "choices": list(failure.choices),
        "quoted": list(failure.quoted),
    }


def failure_from_json(values: Mapping[str, Any]) -> PurchaseFailed:
    """Return a failure from JSON. Raises: ValueError."""
    return PurchaseFailed(
        FailureCode(values["code"]),
        str(values["message"]),
        missing=tuple(map(str, values["missing"])),
        choices=tuple(map(str, values["choices"])),
        quoted=tuple(map(str, values.get("quoted", ()))),
    )
