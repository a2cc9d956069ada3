"""Taking out of an OpenAI stream what is in it only because usage was asked for on the caller's behalf."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.gateway.dialects.members import member_span

_LINE_ENDS = b"\r\n"


def without(frame: bytes, told: Mapping[str, Any]) -> bytes:
    """Return the bytes of a frame without those traces, or as they are where it has none.

    Two are known: a last chunk with usage and no choices, and `"usage": null` in all chunks before it.
    """
    if "usage" not in told or "error" in told:
        return frame
    if isinstance(told["usage"], dict) and told.get("choices") == []:
        # Blank lines before it belong to nobody.
        return frame[: len(frame) - len(frame.lstrip(_LINE_ENDS))]
    if told["usage"] is not None:
        return frame
    return _without_null(frame)


def _without_null(frame: bytes) -> bytes:
    at = frame.find(b"{")
    try:
        text = frame[at:].decode("utf-8")
        span = member_span(text, "usage")
    except (UnicodeDecodeError, ValueError, IndexError):
        # More than one line of data, or broken: what cannot be cut cleanly stays.
        return frame
    start, end = span
    return frame[:at] + (text[:start] + text[end:]).encode("utf-8")
