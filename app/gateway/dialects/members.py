"""Where a field stands in the text of a JSON object, so that it can be changed and every other byte stays."""

from __future__ import annotations

import json

_BLANK = " \t\r\n"
_DECODER = json.JSONDecoder()


def value_span(text: str, name: str) -> tuple[int, int]:
    """Find the value of a field of the first object in a text. Raises: ValueError, IndexError."""
    _, _, start, end = _find(text, name)
    return start, end


def member_span(text: str, name: str) -> tuple[int, int]:
    """Find a field with its name and the one comma that goes with it. Raises: ValueError, IndexError."""
    before, key, _, end = _find(text, name)
    if text[before] == ",":
        return before, end
    after = _skip(text, end)
    return (key, _skip(text, after + 1)) if text[after] == "," else (key, end)


def _find(text: str, name: str) -> tuple[int, int, int, int]:
    """Return where a field's comma or bracket, its name, its value and its end stand."""
    before = text.index("{")
    while True:
        key = _skip(text, before + 1)
        found, at = _DECODER.raw_decode(text, key)
        start = _skip(text, _skip(text, at) + 1)
        _, end = _DECODER.raw_decode(text, start)
        if found == name:
            return before, key, start, end
        before = _skip(text, end)
        if text[before] != ",":
            raise ValueError(name)


def _skip(text: str, at: int) -> int:
    while text[at] in _BLANK:
        at += 1
    return at
