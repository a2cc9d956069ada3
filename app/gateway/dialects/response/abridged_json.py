"""Abridging of JSON that is too large to be kept, such as a picture or the vectors of many texts, as it arrives."""

from __future__ import annotations

import re
from collections import Counter

# A longer string loses its content. So does a larger part: an array in the outermost value, or any container two levels
# deep. The `response` around a `usage` is neither.
_MAX_STRING_BYTES = 1024
_MAX_PART_BYTES = 1024 * 1024
_MAX_DEPTH = 100
_MAX_BYTES = 8 * 1024 * 1024

_STRUCTURAL = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')
_BRACKET = re.compile(rb"[{}\[\]]")
_SKIPPED_BYTES = 4096
_FIELD = re.compile(rb'"(\w{1,50})"\s*:\s*"\Z')
_FIELD_BYTES = 100
_BINARY = b";base64,"
_NEVER_AGAIN = -1


class KeptJson:
    """A JSON value: whole up to a size; of a larger one, its beginning, which shows the format, and it abridged."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.kept = bytearray()
        self.size = 0
        self.abridged: AbridgedJson | None = None

    def feed(self, piece: bytes) -> None:
        self.size += len(piece)
        if self.abridged is not None:
            self.abridged.feed(piece)
            return
        self.kept += piece
        if self.size > self._max_bytes:
            self.abridged = AbridgedJson()
            self.abridged.feed(bytes(self.kept))
            del self.kept[1024:]


class AbridgedJson:
    """A JSON value without the content of its long strings and large parts. Feed it in any pieces."""

    def __init__(self) -> None:
        self._kept = bytearray()
        # The depth, and where in `_kept` the content of the outer containers begins.
        self._depth = 0
        self._outer: list[int] = []
        # The depth at which the content of a container is being omitted.
        self._omitted_at: int | None = None
        # Where the content of an open string begins, its size, and by how much its escapes are longer than characters.
        self._string_at: int | None = None
        self._string_bytes = self._escape_bytes = 0
        self._is_binary = False
        self._is_escaped = False
        self.omitted_bytes: Counter[str] = Counter()
        """The size of the text omitted from long strings, by the names of their fields."""

    def feed(self, piece: bytes) -> None:
        if self._omitted_at == _NEVER_AGAIN:
            return
        at = 0
        if self._is_escaped and piece:
            self._is_escaped, at = False, 1
            self._keep(piece[:1])
        while at < len(piece):
            if self._omitted_at is not None and self._string_at is None:
                at = self._skip(piece, at)
            found = (_STRUCTURAL if self._string_at is None else _IN_STRING).search(piece, at)
            if found is None:
                self._keep(piece[at:])
                return
            self._keep(piece[at : found.start()])
            at = found.end()
            character = found.group()
            if character == b'"':
                self._toggle_string()
            elif character == b"\\":
                escaped = piece[at : at + 1]
                self._keep(character + escaped)
                self._escape_bytes += 6 - _utf8_bytes(piece[at + 1 : at + 3]) if escaped == b"u" else 1
                self._is_escaped = not escaped
                at += 1
            elif character in b"{[":
                self._open(character)
            else:
                self._close(character)

    def _skip(self, piece: bytes, at: int) -> int:
        """Return where a string begins in an omitted part, or where the part ends."""
        omitted_at = self._omitted_at or 0
        is_string = False
        while at < len(piece) and not is_string:
            string_at = piece.find(b'"', at, at + _SKIPPED_BYTES)
            is_string = string_at >= 0
            end = string_at if is_string else min(at + _SKIPPED_BYTES, len(piece))
            closed = piece.count(b"}", at, end) + piece.count(b"]", at, end)
            if self._depth - closed > omitted_at:
                self._depth += piece.count(b"{", at, end) + piece.count(b"[", at, end) - closed
            else:
                for bracket in _BRACKET.finditer(piece, at, end):
                    is_closing = bracket.group() in b"}]"
                    if is_closing and self._depth - 1 <= omitted_at:
                        return bracket.start()
                    self._depth += -1 if is_closing else 1
            at = end
        return at

    def text(self) -> bytes:
        """Return what is left of the value; nothing if that is still too large."""
        return bytes(self._kept)

    def _toggle_string(self) -> None:
        begin, self._string_at = self._string_at, None
        if begin is not None and self._string_bytes > _MAX_STRING_BYTES and self._omitted_at is None:
            field = _FIELD.search(bytes(self._kept[max(0, begin - _FIELD_BYTES) :]))
            if field is not None and not self._is_binary:
                self.omitted_bytes[field.group(1).decode()] += self._string_bytes - self._escape_bytes
        self._keep(b'"')
        if begin is None:
            self._string_at = len(self._kept)
            self._string_bytes = self._escape_bytes = 0

    def _open(self, character: bytes) -> None:
        self._keep(character)
        if len(self._outer) == self._depth < 3:  # noqa: PLR2004 - the outermost and two levels in it
            self._outer.append(len(self._kept))
        if self._depth == _MAX_DEPTH and self._omitted_at is None:
            self._omitted_at = self._depth
        self._depth += 1

    def _close(self, character: bytes) -> None:
        self._depth = max(0, self._depth - 1)
        del self._outer[self._depth :]
        if self._omitted_at is not None and self._depth <= self._omitted_at:
            self._omitted_at = None
        self._keep(character)

    def _keep(self, data: bytes) -> None:
        if self._string_at is not None:
            is_first = self._string_bytes <= _MAX_STRING_BYTES
            self._string_bytes += len(data)
            if self._string_bytes > _MAX_STRING_BYTES:
                if is_first and self._omitted_at is None:
                    self._is_binary = _BINARY in self._kept[self._string_at :] + data[:_MAX_STRING_BYTES]
                    del self._kept[self._string_at :]
                return
        if self._omitted_at is not None:
            return
        self._kept += data
        for depth, begin in enumerate(self._outer):
            is_part = depth > 1 or (depth == 1 and self._kept[begin - 1 : begin] == b"[")
            if is_part and len(self._kept) - begin > _MAX_PART_BYTES:
                del self._kept[begin:]
                self._omitted_at = depth
                return
        if len(self._kept) > _MAX_BYTES:
            self._kept.clear()
            self._omitted_at = _NEVER_AGAIN


def _utf8_bytes(code: bytes) -> int:
    r"""Return the size in UTF-8 of a character that is written as `\u`, by its first two hexadecimal digits."""
    return 2 if b"00" <= code < b"08" or b"d8" <= code.lower() <= b"df" else 3
