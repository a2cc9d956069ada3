"""How deep a JSON text is nested, found in one pass before anything decodes it.

Python's decoder is recursive, and a library here raises the recursion limit far beyond what the C stack holds: a text
that is deep enough would end the process instead of failing.
"""

from __future__ import annotations

import re

# Possessive throughout, and an unclosed string reaches to the end: no byte is looked at twice, whatever the text.
_STRINGS = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_OPENING = b"[{"


def is_nested_too_deeply(text: bytes, most: int) -> bool:
    """Tell whether a JSON text has more levels than `most`."""
    if text.count(b"[") + text.count(b"{") <= most:
        return False
    depth = 0
    for bracket in _STRINGS.sub(b"", text).translate(None, _NOT_BRACKETS):
        depth += 1 if bracket in _OPENING else -1
        if depth > most:
            return True
    return False
