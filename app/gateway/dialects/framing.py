"""Cutting a running answer into its events, whatever the chunks in which it comes: memory stays bounded.

Server-sent events (HTML Living Standard, 9.2.6) end with a blank line, and lines with CR, LF or both. Gemini's stream
without `alt=sse` is one JSON array, whose objects are the events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

# One event of a language model has a few hundred bytes; a picture in an event has megabytes.
MOST_EVENT_BYTES = 8 * 1024 * 1024

# Atomic: CR LF is one line end, never two.
_FRAME_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_BOM = b"\xef\xbb\xbf"
_LONGEST_END = 4
_MARKS = re.compile(rb'[{}"\\]')


@dataclass(frozen=True, slots=True)
class Frame:
    """A piece of a stream with all its bytes; `payload` is None where it was too large to be read."""

    raw: bytes
    payload: bytes | None


class EventStream:
    """Cuts server-sent events. The bytes of the frames, one after another, are the bytes that were fed."""

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._held = b""
        self._searched = 0
        self._is_oversized = False
        self._is_first = True

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the frames that this chunk completes."""
        self._held += chunk
        while True:
            end = _FRAME_END.search(self._held, self._searched)
            # A CR at the very end may be half of a CR LF: the next byte tells.
            if end is None or (end.end() == len(self._held) and self._held.endswith(b"\r")):
                break
            yield self._cut(end.end())
        self._searched = max(0, len(self._held) - _LONGEST_END)
        if len(self._held) > self._most_bytes:
            self._is_oversized = True
            # The last bytes may be the beginning of the end of this frame.
            keep = len(self._held) - _LONGEST_END
            raw, self._held, self._searched = self._held[:keep], self._held[keep:], 0
            yield Frame(raw, None)

    def flush(self) -> Iterator[Frame]:
        """Yield what is left at the end of the stream: the standard discards it, most clients read it."""
        if self._held:
            yield self._cut(len(self._held))

    def _cut(self, end: int) -> Frame:
        raw, self._held, self._searched = self._held[:end], self._held[end:], 0
        if self._is_oversized:
            self._is_oversized = False
            return Frame(raw, None)
        body = raw
        if self._is_first:
            self._is_first = False
            body = raw.removeprefix(_BOM)
        return Frame(raw, _payload(body))


class ArrayStream:
    """Cuts the objects of a JSON array, or of a lone object. Frames have no raw bytes: nothing is taken out here."""

    def __init__(self, most_bytes: int = MOST_EVENT_BYTES) -> None:
        self._most_bytes = most_bytes
        self._object = bytearray()
        self._depth = 0
        self._is_in_text = False
        self._escaped = -1

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """Yield the objects that this chunk completes."""
        start = 0
        for mark in _MARKS.finditer(chunk):
            at, letter = mark.start(), mark.group()
            if at == self._escaped or self._is_text(at, letter):
                continue
            if letter == b"{":
                start = at if self._depth == 0 else start
                self._depth += 1
            elif self._depth:
                self._depth -= 1
                if self._depth == 0:
                    self._keep(chunk[start : at + 1])
                    yield Frame(b"", bytes(self._object) if len(self._object) <= self._most_bytes else None)
                    self._object.clear()
        self._escaped -= len(chunk)
        if self._depth:
            self._keep(chunk[start:])

    def _is_text(self, at: int, letter: bytes) -> bool:
        """Follow strings and their escapes; tell whether this mark belongs to one."""
        if letter == b'"':
            self._is_in_text = not self._is_in_text
            return True
        if letter == b"\\":
            self._escaped = at + 1
            return True
        return self._is_in_text

    def flush(self) -> Iterator[Frame]:
        """Yield nothing: half an object says nothing."""
        return iter(())

    def _keep(self, piece: bytes) -> None:
        # One byte beyond the limit marks an object that is too large; the rest of it is not kept.
        self._object += piece[: max(0, self._most_bytes + 1 - len(self._object))]


def _payload(frame: bytes) -> bytes:
    found = []
    for line in _LINE_END.split(frame):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found)
