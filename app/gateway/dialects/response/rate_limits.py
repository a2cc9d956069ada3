"""Rate limits of the operator's account that an upstream reports in a response with status 200."""

from __future__ import annotations

import re
from typing import Any

from app.gateway.dialects.response.response_reader import parse_object

MAX_BYTES = 1024 * 1024
_LIMITED = frozenset({"429", "-32429", "RATE_LIMITED", "RESOURCE_EXHAUSTED"})
_CODES = ("code", "error_code", "status", "statusCode", "status_code")
# Servers of JSON-RPC also use general codes (-32000, -32005, -32016), or none, with one of these messages.
_MESSAGE = re.compile(
    r"compute units per second|rate.?limit|too many requests|request limit|per second|capacity limit"
    r"|\A(?:request )?limit exceeded\W*\Z",
    re.IGNORECASE,
)
# A client chooses why its own contract reverts.
_EXECUTION = re.compile(r"revert|execut|simulat|instruction|transaction|require", re.IGNORECASE)
_EXECUTION_CODES = frozenset({3, -32015})
_HINTS = (b"error", b":429", b": 429", b'"429"')


def limited_calls(body: bytes) -> tuple[int, int]:
    """Return how many answers a JSON response has, and how many of them report a rate limit."""
    if not any(hint in body for hint in _HINTS):
        return 1, 0
    parsed = parse_object(body)
    answers = parsed if isinstance(parsed, list) and parsed else [parsed]
    return len(answers), sum(_is_limited(each) for each in answers)


def _is_limited(answer: Any) -> bool:
    if not isinstance(answer, dict) or answer.get("result") is not None:
        return False
    error = answer.get("error")
    if any(_has_code(each) for each in (answer, error, answer.get("status"))):
        return True
    message = error.get("message") if isinstance(error, dict) else error
    if not isinstance(message, str) or (isinstance(error, dict) and error.get("code") in _EXECUTION_CODES):
        return False
    return bool(_MESSAGE.search(message)) and not _EXECUTION.search(message)


def _has_code(holder: Any) -> bool:
    if not isinstance(holder, dict):
        return False
    return any(str(holder[name]) in _LIMITED for name in _CODES if isinstance(holder.get(name), int | str))
