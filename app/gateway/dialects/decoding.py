"""Reading compressed answers without holding them: upstreams are asked for none, and some compress all the same."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Protocol

_MOST_AT_ONCE = 256 * 1024
# What a few kilobytes can unfold to has no end; no answer is larger than this.
_MOST_DECODED = 256 * 1024 * 1024
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32


class Decoder(Protocol):
    """Turns the bytes of the wire into those that were meant, in pieces of bounded size."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what this chunk unfolds to. Raises: UnreadableError."""
        ...


class UnreadableError(Exception):
    """The answer cannot be read: it is broken, or unfolds to more than any answer has."""


class Identity:
    """An answer that is not compressed."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the chunk."""
        yield chunk


class Inflate:
    """gzip, zlib, and the raw deflate that some servers send under that name."""

    def __init__(self) -> None:
        """Begin with what the name says; raw deflate is tried when that fails before anything came of it."""
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        # All bytes so far, until it is clear what they are.
        self._unproven: bytes | None = b""
        self._decoded = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield what this chunk unfolds to. Raises: UnreadableError."""
        waiting = chunk
        if self._unproven is not None:
            self._unproven += chunk
            if len(self._unproven) > _MOST_AT_ONCE:
                # A header without an end, for instance.
                raise UnreadableError
        while waiting:
            piece = self._piece(waiting)
            waiting = self._inflate.unconsumed_tail
            self._decoded += len(piece)
            if self._decoded > _MOST_DECODED:
                raise UnreadableError
            if piece:
                self._unproven = None
                yield piece
            if self._inflate.eof and self._inflate.unused_data:
                # gzip may consist of several members, one after another.
                waiting, self._inflate = self._inflate.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)

    def _piece(self, waiting: bytes) -> bytes:
        try:
            return self._inflate.decompress(waiting, _MOST_AT_ONCE)
        except zlib.error:
            if self._unproven is None:
                raise UnreadableError from None
        # By chance, raw deflate can begin like the header of zlib.
        self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        again, self._unproven = self._unproven, None
        return self._piece(again)


def decoder_for(content_encoding: str | None) -> Decoder | None:
    """Choose the decoder of an answer; None for an encoding that is not read here (its usage stays unknown)."""
    encoding = (content_encoding or "").strip().lower()
    if encoding in {"", "identity"}:
        return Identity()
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return Inflate()
    return None
