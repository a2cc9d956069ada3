"""Reading of usage from a response while it is relayed, without delay or change and with bounded memory.

The exception is an OpenAI stream for which the gateway requested usage: that is removed again.
Reading never fails: if the usage cannot be read it is unknown, and pricing estimates it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from app.core.content_decoding import IdentityDecoder, UndecodableResponse, decoder_for
from app.core.strict_json import parse_response
from app.gateway.dialects.request.cost_params import CostParams, Surface
from app.gateway.dialects.request.injection import member_span
from app.gateway.dialects.response.framing import JsonArrayParser, SseParser, StreamFrame
from app.gateway.dialects.response.usage import UsageReading
from app.gateway.dialects.response.usage_accumulator import UsageAccumulator
from app.gateway.dialects.response.usage_readers import MAX_TOKENS

# A response of up to this size is parsed whole; of a larger one the end is kept, which has the usage of all providers.
MAX_BUFFERED_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 256 * 1024
_USAGE_KEY = re.compile(rb'(?<!\\)"(usage|usageMetadata|tool_usage|costDollars)"\s*:\s*(?=\{)')
_MAX_DEPTH = 200
_LINE_ENDS = b"\r\n"
# Each attempt parses the rest of the text.
_MAX_ATTEMPTS = 10


class ResponseReader:
    """One response of an upstream. Feed every chunk, then call `finish`, even after an error."""

    def __init__(
        self,
        params: CostParams,
        *,
        status: int,
        content_type: str | None = None,
        content_encoding: str | None = None,
    ) -> None:
        self._status = status
        self._decoder = decoder_for(content_encoding)
        self._usage = UsageAccumulator(params)
        self._received = 0
        self._decoded = 0
        self._reading: UsageReading | None = None
        kind = (content_type or "").split(";")[0].strip().lower()
        self._frames: SseParser | JsonArrayParser | None = None
        if kind == "text/event-stream":
            self._frames = SseParser()
        elif params.is_streamed and params.surface is Surface.GENERATE:
            self._frames = JsonArrayParser()
        self._plain: _BufferedBody | None = _BufferedBody() if self._frames is None else None
        # Removing something from a compressed stream would require compressing it again.
        is_cleaned = params.usage_injected and isinstance(self._decoder, IdentityDecoder)
        self._cleaned = self._frames if is_cleaned and isinstance(self._frames, SseParser) else None

    def feed(self, chunk: bytes) -> bytes:
        """Read a chunk and return the bytes to relay."""
        self._received += len(chunk)
        if self._cleaned is not None:
            self._decoded += len(chunk)
            return b"".join(self._strip_frames(self._cleaned.feed(chunk)))
        self._read_chunk(chunk)
        return chunk

    def flush(self) -> bytes:
        """Return the remaining bytes to relay after the end of the response."""
        if self._cleaned is not None:
            return b"".join(self._strip_frames(self._cleaned.flush()))
        if self._frames is not None:
            for frame in self._frames.flush():
                self._record_frame(frame)
        return b""

    def finish(self, *, is_broken: bool = False) -> UsageReading:
        """Return the usage; idempotent. `is_broken`: the response did not reach its end."""
        if self._reading is None:
            if self._plain is not None:
                for payload in self._plain.objects():
                    self._usage.add(payload)
            self._reading = self._usage.reading(
                status=self._status,
                bytes_received=self._received,
                is_broken=is_broken,
                tokens_unread=self._unread_tokens(is_broken=is_broken),
            )
        return self._reading

    def _unread_tokens(self, *, is_broken: bool) -> int:
        """Return the maximum number of tokens in the response beyond those reported."""
        if self._decoder is None:
            return MAX_TOKENS
        # Interrupted content is limited by its own bytes: the other bytes are the format around it.
        return 0 if is_broken and self._usage.content_bytes else self._decoded

    def _read_chunk(self, chunk: bytes) -> None:
        if self._decoder is None:
            return
        try:
            for piece in self._decoder.feed(chunk):
                self._decoded += len(piece)
                if self._plain is not None:
                    self._plain.append(piece)
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
        if frame.payload is None:
            self._usage.add_unread(len(frame.raw))
            return None
        payload = parse_object(frame.payload)
        if isinstance(payload, dict):
            self._usage.add(payload)
            return payload
        return None


class _BufferedBody:
    """A response that is not a stream: the whole body, or its end."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_whole = True

    def append(self, piece: bytes) -> None:
        self._kept += piece
        if len(self._kept) > MAX_BUFFERED_BYTES:
            self._is_whole = False
            del self._kept[:-_TAIL_BYTES]

    def objects(self) -> list[dict[str, Any]]:
        if not self._is_whole:
            return self._usage_in_tail()
        payload = parse_object(bytes(self._kept))
        return [
            each for each in (payload if isinstance(payload, list) else [payload]) if isinstance(each, dict)
        ]

    def _usage_in_tail(self) -> list[dict[str, Any]]:
        # A quote inside a JSON string follows a backslash, so a match is the name of a field.
        text = bytes(self._kept)
        read: dict[str, Any] = {}
        for found in islice(reversed(list(_USAGE_KEY.finditer(text))), _MAX_ATTEMPTS):
            # Only from a top-level field on is the rest of the body the end of an object: tool schemas, which responses
            # repeat, may use the same names.
            rest = parse_object(b"{" + text[found.start() :])
            if isinstance(rest, dict):
                read = rest
        return [read] if read else []


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
