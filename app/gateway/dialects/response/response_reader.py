"""Reading of usage from a response while it is relayed, without delay or change and with bounded memory.

The exception is an OpenAI stream for which the gateway requested usage: that is removed again. Reading never fails: if
the usage cannot be read it is unknown, and pricing estimates it from the content. Of an event larger than the bound,
the counts are left.

Server-sent events (HTML Living Standard, 9.2.6) end with a blank line, and lines with CR, LF or both. Gemini's stream
without `alt=sse` is one JSON array of events.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from app.core.content_decoding import IdentityDecoder, UndecodableResponse, decoder_for
from app.core.strict_json import parse_response
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.request.injection import member_span
from app.gateway.dialects.response.abridged_json import AbridgedJson, KeptJson
from app.gateway.dialects.response.usage_accumulator import UsageAccumulator
from app.gateway.dialects.response.usage_readers import MAX_TOKENS, UsageReading
from app.ports.upstream import UpstreamResponse, named_headers

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


def _payload(frame: bytes) -> bytes:
    found = []
    for line in _LINE_END.split(frame) if b"\r" in frame else frame.split(b"\n"):
        name, _, value = line.partition(b":")
        if name == b"data":
            found.append(value.removeprefix(b" "))
    return b"\n".join(found)


# A response of up to this size is parsed whole; a larger one is abridged.
MAX_BUFFERED_BYTES = 8 * 1024 * 1024
_MAX_DEPTH = 200
_LINE_ENDS = b"\r\n"
_ERROR_EVENT = (b"event: error", b"event:error")
# A page of a proxy in front of the model, or its error in XML. No transcript begins like this.
_MARKUP = re.compile(rb"\s*<(?:!doctype|\?xml|html|head|body|!--)", re.IGNORECASE)


class ResponseReader:
    """A response of an upstream whose head has arrived. Feed every chunk, then call `finish`, even after an error."""

    def __init__(self, params: CostParams, response: UpstreamResponse) -> None:
        named = named_headers(response)
        content_encoding = named.get("content-encoding")
        self._status = response.status
        self._is_streamed = params.is_streamed
        self._decoder = decoder_for(content_encoding)
        self._usage = UsageAccumulator(params)
        self._received = 0
        self._reading: UsageReading | None = None
        kind = named.get("content-type", "").split(";")[0].strip().lower()
        self.kind = "" if content_encoding else kind
        self._frames: SseParser | JsonArrayParser | None = None
        if kind == "text/event-stream":
            self._frames = SseParser()
        elif params.is_streamed and params.surface is Surface.GENERATE:
            self._frames = JsonArrayParser()
        self._plain = KeptJson(MAX_BUFFERED_BYTES) if self._frames is None else None
        # Removing something from a compressed stream would require compressing it again.
        is_cleaned = params.usage_injected and isinstance(self._decoder, IdentityDecoder)
        self._cleaned = self._frames if is_cleaned and isinstance(self._frames, SseParser) else None

    def feed(self, chunk: bytes) -> bytes:
        self._received += len(chunk)
        if self._cleaned is not None:
            return b"".join(self._strip_frames(self._cleaned.feed(chunk)))
        self._read_chunk(chunk)
        return chunk

    def flush(self) -> bytes:
        """Return the remaining bytes to relay after the end of the response."""
        if self._cleaned is not None:
            return b"".join(self._strip_frames(self._cleaned.flush()))
        # An incomplete object of a JSON array has no usage.
        if isinstance(self._frames, SseParser):
            for frame in self._frames.flush():
                self._record_frame(frame)
        return b""

    @property
    def has_begun(self) -> bool:
        """Return whether a stream has some content, or has failed."""
        return self._usage.content_bytes > 0 or self._usage.has_failed

    def finish(self, *, is_broken: bool = False) -> UsageReading:
        """Return the usage; idempotent. `is_broken`: the response did not reach its end."""
        if self._reading is None:
            bytes_unread = self._read_plain() if self._plain is not None else 0
            if self._decoder is None and self._received:
                bytes_unread = MAX_TOKENS
            self._reading = self._usage.reading(
                status=self._status, bytes_received=self._received, is_broken=is_broken, bytes_unread=bytes_unread
            )
        return self._reading

    def _read_plain(self) -> int:
        """Read a body that is not a stream; return its size if it is in an unknown format: all of it may be content."""
        body = self._plain
        if body is None or (not body.kept.strip() and body.abridged is None):
            return 0
        large = body.abridged
        payload = parse_object(bytes(body.kept) if large is None else large.text())
        for each in payload if isinstance(payload, list) else [payload]:
            if isinstance(each, dict):
                self._usage.add(each, None if large is None else large.omitted_bytes)
        if payload is not None or _MARKUP.match(body.kept):
            return 0
        if self._is_streamed and large is None:
            # A stream that its content type does not announce.
            frames = SseParser()
            events = [*frames.feed(bytes(body.kept)), *frames.flush()]
            if [frame for frame in events if self._record_frame(frame) is not None]:
                return 0
        return body.size

    def _read_chunk(self, chunk: bytes) -> None:
        if self._decoder is None:
            return
        try:
            for piece in self._decoder.feed(chunk):
                if self._plain is not None:
                    self._plain.feed(piece)
                elif self._frames is not None:
                    for frame in self._frames.feed(piece):
                        self._record_frame(frame)
        except UndecodableResponse:
            self._decoder = None

    def _strip_frames(self, frames: Iterator[StreamFrame]) -> Iterator[bytes]:
        for frame in frames:
            payload = self._record_frame(frame)
            yield frame.raw if payload is None else _strip_injected_usage(frame.raw, payload)

    def _record_frame(self, frame: StreamFrame) -> dict[str, Any] | None:
        """Read an event; return it if something may be removed from it."""
        if frame.abridged is not None:
            payload = parse_object(frame.abridged.text())
            if isinstance(payload, dict):
                self._usage.add(payload, frame.abridged.omitted_bytes)
            return None
        text = frame.payload
        if not text:
            # Gemini's errors are not framed as events.
            text = frame.raw.strip()
            if not text.startswith(b"{"):
                return None
        payload = parse_object(text)
        if frame.raw.startswith(_ERROR_EVENT):
            self._usage.has_failed = True
        if isinstance(payload, dict):
            self._usage.add(payload)
            return payload
        return None


def parse_object(payload: bytes) -> Any:
    """Parse JSON with exact numbers; None for malformed or too deeply nested JSON."""
    try:
        # Some models return NaN as a probability, which does not matter here.
        return parse_response(payload, max_depth=_MAX_DEPTH, parse_constant=str)
    except ValueError:
        return None


def _strip_injected_usage(frame: bytes, payload: Mapping[str, Any]) -> bytes:
    """Return the bytes of a frame without injected usage.

    It has two forms: a last chunk with usage and no choices, and `"usage": null` in all chunks before it.
    """
    if "usage" not in payload or "error" in payload:
        return frame
    if isinstance(payload["usage"], dict) and payload.get("choices") == []:
        # Blank lines before the frame are relayed.
        return frame[: len(frame) - len(frame.lstrip(_LINE_ENDS))]
    if payload["usage"] is not None:
        return frame
    at = frame.find(b"{")
    try:
        text = frame[at:].decode("utf-8")
        start, end = member_span(text, "usage")
    except (ValueError, IndexError):
        # Malformed, or more than one line of data: relayed unchanged.
        return frame
    return frame[:at] + (text[:start] + text[end:]).encode("utf-8")
