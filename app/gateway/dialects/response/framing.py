"""Incremental parsers of streamed responses, with bounded memory: of a larger event, the counts are left.

Server-sent events (HTML Living Standard, 9.2.6) end with a blank line, and lines with CR, LF or both. Gemini's stream
without `alt=sse` is one JSON array of events.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from app.gateway.dialects.response.abridged_json import AbridgedJson, KeptJson

# An event of a language model has a few hundred bytes; one with an image has megabytes.
MAX_EVENT_BYTES = 8 * 1024 * 1024

# Atomic: CR LF is one line end, never two.
_FRAME_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_LINE_PART = re.compile(rb"[\r\n]+|[^\r\n]+")
_DATA = b"data:"
_BOM = b"\xef\xbb\xbf"
_MAX_TERMINATOR_BYTES = 4
_STRUCTURAL = re.compile(rb'[{}"\\]')


class StreamFrame(NamedTuple):
    """A frame of a stream with all its bytes, or the next ones of a frame that is too large to be kept.

    The last piece of such a frame has what is left of it.
    """

    raw: bytes
    payload: bytes = b""
    abridged: AbridgedJson | None = None


class _LargeEvent:
    """The data of a server-sent event that is too large to be kept."""

    def __init__(self) -> None:
        self.data = AbridgedJson()
        # The first bytes of a line, until they show whether it has data.
        self._begin = b""
        self._is_data: bool | None = None

    def feed(self, raw: bytes) -> None:
        for part in _LINE_PART.findall(raw):
            if part[:1] in b"\r\n":
                self._begin, self._is_data = b"", None
            elif self._is_data is None:
                self._begin += part
                if len(self._begin) >= len(_DATA):
                    self._is_data = self._begin.startswith(_DATA)
                    self._feed_data(self._begin[len(_DATA) :])
            else:
                self._feed_data(part)

    def _feed_data(self, part: bytes) -> None:
        if self._is_data:
            self.data.feed(part)


class SseParser:
    """Splits server-sent events. The concatenated bytes of all frames are the bytes that were fed."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._most_bytes = max_bytes
        self._held = b""
        self._searched = 0
        self._large: _LargeEvent | None = None
        self._is_first = True

    def feed(self, chunk: bytes) -> Iterator[StreamFrame]:
        """Yield the frames that this chunk completes, and each comment before a frame at once."""
        self._held += chunk
        while True:
            if self._held.startswith(b":") and self._large is None and (line := self._take_comment()):
                yield StreamFrame(line, b"")
                continue
            end = _FRAME_END.search(self._held, self._searched)
            # A final CR may be half of a CR LF: wait for the next byte.
            if end is None or (end.end() == len(self._held) and self._held.endswith(b"\r")):
                break
            yield self._take_frame(end.end())
        self._searched = max(0, len(self._held) - _MAX_TERMINATOR_BYTES)
        if len(self._held) > self._most_bytes:
            if self._large is None:
                self._large = _LargeEvent()
            # The last bytes may be the start of the frame's terminator.
            raw = self._take(len(self._held) - _MAX_TERMINATOR_BYTES)
            self._large.feed(self._without_mark(raw))
            yield StreamFrame(raw)

    def flush(self) -> Iterator[StreamFrame]:
        """Yield the rest at the end of the stream: the standard discards it, most clients parse it."""
        if self._held:
            yield self._take_frame(len(self._held))

    def _take_comment(self) -> bytes:
        end = _LINE_END.search(self._held)
        if end is None or (end.end() == len(self._held) and self._held.endswith(b"\r")):
            return b""
        line, self._held, self._searched = self._held[: end.end()], self._held[end.end() :], 0
        self._is_first = False
        return line

    def _take_frame(self, end: int) -> StreamFrame:
        raw = self._take(end)
        body = self._without_mark(raw) if self._is_first else raw
        if self._large is None:
            return StreamFrame(raw, _payload(body))
        large, self._large = self._large, None
        large.feed(body)
        return StreamFrame(raw, abridged=large.data)

    def _take(self, end: int) -> bytes:
        raw, self._held, self._searched = self._held[:end], self._held[end:], 0
        return raw

    def _without_mark(self, raw: bytes) -> bytes:
        is_first, self._is_first = self._is_first, False
        return raw.removeprefix(_BOM) if is_first else raw


class JsonArrayParser:
    """Splits the objects of a JSON array, or a single object. Its frames have no raw bytes."""

    def __init__(self, max_bytes: int = MAX_EVENT_BYTES) -> None:
        self._most_bytes = max_bytes
        self._object = KeptJson(max_bytes)
        self._depth = 0
        self._is_in_text = False
        self._escaped = -1

    def feed(self, chunk: bytes) -> Iterator[StreamFrame]:
        start = 0
        for structural in _STRUCTURAL.finditer(chunk):
            at, character = structural.start(), structural.group()
            if at == self._escaped or self._is_inside_string(at, character):
                continue
            if character == b"{":
                start = at if self._depth == 0 else start
                self._depth += 1
            elif self._depth:
                self._depth -= 1
                if self._depth == 0:
                    self._object.feed(chunk[start : at + 1])
                    yield StreamFrame(b"", bytes(self._object.kept), self._object.abridged)
                    self._object = KeptJson(self._most_bytes)
        self._escaped -= len(chunk)
        if self._depth:
            self._object.feed(chunk[start:])

    def _is_inside_string(self, at: int, character: bytes) -> bool:
        """Track strings and their escapes; return whether this character is part of one."""
        if character == b'"':
            self._is_in_text = not self._is_in_text
            return True
        if character == b"\\":
            self._escaped = at + 1
            return True
        return self._is_in_text

    def flush(self) -> Iterator[StreamFrame]:
        """Yield nothing: an incomplete object has no usage."""
        return iter(())


def _payload(frame: bytes) -> bytes:
    found = []
    for line in _LINE_END.split(frame) if b"\r" in frame else frame.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found)
