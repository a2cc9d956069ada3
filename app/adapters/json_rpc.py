"""What all JSON-RPC 2.0 endpoints have in common: how a reply is read, and which call it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from app.core.json_depth import is_nested_too_deeply

_DEEPEST = 64


class MalformedAnswerError(ValueError):
    """The answer is not what was asked for; the message names the expected shape, never the answer."""


def parsed(body: bytes) -> object:
    """Parse JSON of a sane depth; the parser recurses, and a deep text would end the process.

    Raises: MalformedAnswerError.
    """
    if is_nested_too_deeply(body, _DEEPEST):
        raise MalformedAnswerError("expected a shallower answer")
    try:
        # Fractions appear only in figures made for people, which nobody reads here.
        value: object = json.loads(body, parse_float=str)
    except (ValueError, RecursionError):
        raise MalformedAnswerError("expected JSON") from None
    return value


def in_order(replies: object, *, expected: int) -> Sequence[Mapping[str, object]]:
    """Return the replies in the order of their requests; a server may answer a batch in any order.

    Raises: MalformedAnswerError.
    """
    if not isinstance(replies, list) or len(replies) != expected:
        raise MalformedAnswerError("expected one reply per call")
    found: dict[int, Mapping[str, object]] = {}
    for reply in replies:
        if not isinstance(reply, dict):
            raise MalformedAnswerError("expected objects")
        number = reply.get("id")
        if expected == 1 and number is None:
            number = 0  # JSON-RPC 2.0 §5: null when the node could not read the request
        if type(number) is not int:
            raise MalformedAnswerError("expected the ids that were sent")
        found[number] = reply
    if set(found) != set(range(expected)):
        raise MalformedAnswerError("expected the ids that were sent")
    return [found[number] for number in range(expected)]


def error_of(answer: object) -> tuple[int, str, str | None]:
    """Return code, message and data (text only) of an error object. Raises: MalformedAnswerError."""
    if not isinstance(answer, dict):
        raise MalformedAnswerError("expected an error object")
    code, message, data = answer.get("code"), answer.get("message"), answer.get("data")
    if type(code) is not int or not isinstance(message, str):
        raise MalformedAnswerError("expected an error object")
    return code, message, data if isinstance(data, str) else None
