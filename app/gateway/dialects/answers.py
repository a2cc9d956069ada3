"""Reading the usage out of an answer while its bytes pass: nothing is delayed, changed or held beyond a limit.

The one exception is an OpenAI stream whose usage was asked for on the caller's behalf: the traces of that are taken
out again (`traces`). Reading never fails: what cannot be read leaves the usage unknown, and pricing estimates it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from itertools import islice
from typing import Any

from app.core.json_depth import is_nested_too_deeply
from app.gateway.dialects import traces
from app.gateway.dialects.counts import MOST_TOKENS
from app.gateway.dialects.decoding import Decoder, Identity, UnreadableError, decoder_for
from app.gateway.dialects.facts import CallFacts, Surface
from app.gateway.dialects.framing import ArrayStream, EventStream, Frame
from app.gateway.dialects.tally import Tally
from app.gateway.dialects.usage import Reading

# A plain answer is read whole up to this; of a larger one the end is kept, where all providers put the usage.
MOST_PLAIN_BYTES = 8 * 1024 * 1024
_TAIL_BYTES = 256 * 1024
_USAGE_KEY = re.compile(rb'(?<!\\)"(usage|usageMetadata)"\s*:\s*(?=\{)')
_MAX_DEPTH = 200
# Each costs a look at the rest of the text.
_MOST_TRIES = 10


class Answer:
    """One answer of an upstream. Feed it every chunk, then `finish`, on every way out."""

    def __init__(
        self,
        facts: CallFacts,
        *,
        status: int,
        content_type: str | None = None,
        content_encoding: str | None = None,
    ) -> None:
        """Choose how to read by what the upstream says that it sends, not by what was asked for."""
        self._status = status
        self._decoder: Decoder | None = decoder_for(content_encoding)
        self._tally = Tally(facts.surface, facts.dialect)
        self._received = 0
        self._decoded = 0
        self._reading: Reading | None = None
        kind = (content_type or "").split(";")[0].strip().lower()
        self._frames: EventStream | ArrayStream | None = None
        if kind == "text/event-stream":
            self._frames = EventStream()
        elif facts.is_streamed and facts.surface is Surface.GENERATE:
            self._frames = ArrayStream()
        self._plain: _Plain | None = _Plain() if self._frames is None else None
        # Taking something out of a compressed stream would mean to compress it anew.
        self._is_cleaned = (
            facts.usage_injected
            and isinstance(self._frames, EventStream)
            and isinstance(self._decoder, Identity)
        )

    def feed(self, chunk: bytes) -> bytes:
        """Read a chunk and return the bytes to pass on."""
        self._received += len(chunk)
        if self._is_cleaned and isinstance(self._frames, EventStream):
            self._decoded += len(chunk)
            return b"".join(self._cleaned(self._frames.feed(chunk)))
        self._read(chunk)
        return chunk

    def flush(self) -> bytes:
        """Return the bytes that are still to pass on when the upstream has ended."""
        if self._is_cleaned and isinstance(self._frames, EventStream):
            return b"".join(self._cleaned(self._frames.flush()))
        if self._frames is not None:
            for frame in self._frames.flush():
                self._note(frame)
        return b""

    def finish(self, *, is_broken: bool = False) -> Reading:
        """Return what the answer told. Repeating it changes nothing; `is_broken`: it did not reach its end."""
        if self._reading is None:
            if self._plain is not None:
                for told in self._plain.objects():
                    self._tally.note(told)
            reading = self._tally.reading(
                status=self._status, bytes_received=self._received, is_broken=is_broken
            )
            self._reading = replace(reading, tokens_unread=self._unread(reading, is_broken=is_broken))
        return self._reading

    def _unread(self, reading: Reading, *, is_broken: bool) -> int:
        """Bound what the answer may hold beyond what was read in it."""
        if self._decoder is None:
            return MOST_TOKENS
        # What broke off in the midst of its words is bounded by them: the rest of its bytes wraps them.
        return 0 if is_broken and reading.streamed_bytes else self._decoded

    def _read(self, chunk: bytes) -> None:
        if self._decoder is None:
            return
        try:
            for piece in self._decoder.feed(chunk):
                self._decoded += len(piece)
                if self._plain is not None:
                    self._plain.keep(piece)
                elif self._frames is not None:
                    for frame in self._frames.feed(piece):
                        self._note(frame)
        except UnreadableError:
            self._decoder = None

    def _cleaned(self, frames: Iterator[Frame]) -> Iterator[bytes]:
        for frame in frames:
            told = self._note(frame)
            yield frame.raw if told is None else traces.without(frame.raw, told)

    def _note(self, frame: Frame) -> dict[str, Any] | None:
        if frame.payload is None:
            self._tally.skip(len(frame.raw))
            return None
        told = read_object(frame.payload)
        if isinstance(told, dict):
            self._tally.note(told)
            return told
        return None


def open_answer(
    facts: CallFacts, *, status: int, content_type: str | None = None, content_encoding: str | None = None
) -> Answer:
    """Begin to read the answer to a call."""
    return Answer(facts, status=status, content_type=content_type, content_encoding=content_encoding)


class _Plain:
    """A plain answer, whole or its end."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._is_whole = True

    def keep(self, piece: bytes) -> None:
        self._kept += piece
        if len(self._kept) > MOST_PLAIN_BYTES:
            self._is_whole = False
            del self._kept[:-_TAIL_BYTES]

    def objects(self) -> list[dict[str, Any]]:
        if not self._is_whole:
            return self._at_the_end()
        told = read_object(bytes(self._kept))
        return [each for each in (told if isinstance(told, list) else [told]) if isinstance(each, dict)]

    def _at_the_end(self) -> list[dict[str, Any]]:
        # A quote inside of a JSON string has a backslash before it, so what is found here is a field's name.
        text = bytes(self._kept)
        for found in islice(reversed(list(_USAGE_KEY.finditer(text))), _MOST_TRIES):
            # The text goes on after the object, so its depth is bounded by cutting it, not by looking.
            try:
                told, _ = json.JSONDecoder(parse_float=Decimal).raw_decode(
                    text[found.end() :].decode("utf-8", "replace")
                )
            except (ValueError, RecursionError, ArithmeticError):
                continue
            return [{found[1].decode(): told}]
        return []


def read_object(payload: bytes) -> Any:
    """Read JSON with exact numbers; None where it is none, or nested beyond reason."""
    if is_nested_too_deeply(payload, _MAX_DEPTH):
        return None
    try:
        return json.loads(payload, parse_float=Decimal)
    except (ValueError, RecursionError, ArithmeticError):
        return None
