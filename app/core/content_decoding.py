"""Incremental decoding of compressed responses: upstreams are asked for none, and some compress all the same."""

import zlib
from collections.abc import Iterator

# A few kilobytes can expand without bound; no legitimate response is larger than this.
_MAX_DECODED_BYTES = 256 * 1024 * 1024
_GZIP_OR_ZLIB = zlib.MAX_WBITS | 32
_FIRST_BITS = frozenset({0x08, 0x0F})


class UndecodableResponse(Exception):
    """The response is malformed, or its decoded content exceeds the maximum."""


class IdentityDecoder:
    """A response that is not compressed."""

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the chunk; of `InflateDecoder`, its content in chunks of bounded size."""
        yield chunk


class InflateDecoder:
    """gzip, zlib, and the raw deflate that some servers send under that name (RFC 9110 §8.4.1.2)."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_GZIP_OR_ZLIB)
        self._received = self._decoded = 0

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Yield the decoded content of this chunk. Raises: UndecodableResponse."""
        waiting = chunk
        # Raw deflate begins with neither the method of zlib nor the first byte of gzip.
        if chunk and not self._received and chunk[0] & 0x0F not in _FIRST_BITS:
            self._inflate = zlib.decompressobj(-zlib.MAX_WBITS)
        self._received += len(chunk)
        while waiting:
            try:
                piece = self._inflate.decompress(waiting, 256 * 1024)
            except zlib.error:
                raise UndecodableResponse from None
            waiting = self._inflate.unconsumed_tail
            self._decoded += len(piece)
            if self._decoded > _MAX_DECODED_BYTES:
                raise UndecodableResponse
            if piece:
                yield piece
            if self._inflate.eof and self._inflate.unused_data:
                # gzip may consist of several members, one after another.
                waiting, self._inflate = self._inflate.unused_data, zlib.decompressobj(_GZIP_OR_ZLIB)


def decoder_for(content_encoding: str | None) -> IdentityDecoder | InflateDecoder | None:
    """Return the decoder of a response; None for an unsupported encoding (its usage stays unknown)."""
    encoding = (content_encoding or "").strip().lower()
    if encoding in {"", "identity"}:
        return IdentityDecoder()
    if encoding in {"gzip", "x-gzip", "deflate"}:
        return InflateDecoder()
    return None
