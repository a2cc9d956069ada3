"""Reads one HTTP/1.1 response (RFC 9112) from a connection that the next request uses again.

Where the response ends is parsed strictly; other header lines are returned as they came, because one odd header must
not lose a response that was paid for. `http.client` parses heads as e-mail, which took most of an exchange's time.
"""

import re
import socket
import time
from http import HTTPStatus
from typing import NamedTuple

from app.ports.upstream import Headers

_RECEIVE_BYTES = 65_536
_MAX_HEAD_BYTES = 65_536
_MAX_HEADERS = 100
_MAX_TIMEOUT_RATIO = 1.02
_MAX_LINE_BYTES = 8192
_MAX_INTERIM_RESPONSES = 10
_VERSION = b"HTTP/1."
_STATUS_LINE = re.compile(r"HTTP/1\.([0-9]) +([1-9][0-9]{2})(?: .*)?", re.ASCII | re.DOTALL)
# Lines may end with LF alone (RFC 9112 §2.2), and a line that begins with white space continues the one before (§5.2).
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_LINE_END = re.compile(r"\r?\n")
_FOLD = re.compile(r"\r?\n[ \t]+")
_LENGTH = re.compile(r"[0-9]{1,18}", re.ASCII)
# The line break before a size ends the data of the chunk before, or the head.
_CHUNK_SIZE = re.compile(rb"\r\n([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_BODYLESS_STATUSES = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})


class MalformedResponse(Exception):
    """A response is truncated or is not HTTP."""


class StillSilent(Exception):
    """Nothing arrived within the time of one read; the response can be read on."""


class ResponseHead(NamedTuple):
    """A parsed head. Without a valid `length`, the body is chunked or ends with the connection."""

    status: int
    headers: Headers
    length: int | None
    is_chunked: bool
    is_persistent: bool


def parse_head(raw: bytes, *, method: str) -> ResponseHead:
    """Parse a head without its empty line. Raises: MalformedResponse."""
    status_line, *lines = _LINE_END.split(_FOLD.sub(" ", raw.decode("latin-1")))
    parsed = _STATUS_LINE.fullmatch(status_line)
    if parsed is None or len(lines) > _MAX_HEADERS:
        raise MalformedResponse
    status = int(parsed[2])
    headers: list[tuple[str, str]] = []
    lengths: set[str] = set()
    codings: list[str] = []
    options: list[str] = []
    for line in lines:
        name, colon, value = line.partition(":")
        # Parsers disagree on whether "Content-Length : 5" states a length.
        if not colon or not name or name[-1] in " \t":
            raise MalformedResponse
        value = value.strip(" \t")
        headers.append((name, value))
        lower = name.lower()
        if lower == "content-length":
            lengths.update(each.strip(" \t") for each in value.split(","))
        elif lower == "transfer-encoding":
            codings.append(value.lower())
        elif lower == "connection":
            options += (each.strip(" \t") for each in value.lower().split(","))
    is_bodyless = method == "HEAD" or status in _BODYLESS_STATUSES or status < HTTPStatus.OK
    if not is_bodyless and (len(lengths) > 1 or codings not in ([], ["chunked"])):
        raise MalformedResponse
    length = 0 if is_bodyless else None
    declared = ",".join(lengths)
    if not codings and not is_bodyless and _LENGTH.fullmatch(declared):
        length = int(declared)
    is_persistent = "close" not in options if parsed[1] != "0" else "keep-alive" in options
    if codings and (is_bodyless or lengths or parsed[1] == "0"):
        # Its sender may see another end of the response (RFC 9112 §6.1, §6.3), and send an empty chunk after none.
        is_persistent = False
    return ResponseHead(status, headers, length, bool(codings) and not is_bodyless, is_persistent)


def set_timeout(open_socket: socket.socket, seconds: float) -> None:
    """Set the timeout of a socket, unless it is hardly longer: to set it is a system call."""
    current = open_socket.gettimeout()
    if current is None or not seconds <= current <= seconds * _MAX_TIMEOUT_RATIO:
        open_socket.settimeout(seconds)


class Http1Reader:
    """Reads the response; the time limit applies to the head or a piece as a whole, not to each byte of it."""

    def __init__(self, open_socket: socket.socket, *, method: str, seconds: float) -> None:
        self._socket = open_socket
        self.seconds = seconds
        self.silence_seconds: float | None = None
        """After this time without a byte, a read raises StillSilent; None: it waits until the time limit."""
        self._buffer = b""
        self.restart_timeout()
        self.head = self._read_head(method)
        self._remaining = self.head.length or 0
        self._ended = False
        if self.head.is_chunked:
            self._buffer = b"\r\n" + self._buffer

    @property
    def is_reusable(self) -> bool:
        """Return whether the next bytes on the connection will be the next response."""
        has_framing = self.head.is_chunked or self.head.length is not None
        return self._ended and has_framing and self.head.is_persistent and not self._buffer

    def restart_timeout(self) -> None:
        self._deadline = time.monotonic() + self.seconds

    def read(self) -> bytes:
        """Return what arrived, at least a byte; empty at the end. Raises: MalformedResponse, OSError, StillSilent."""
        if self._ended:
            return b""
        if self.head.is_chunked:
            return self._read_chunks()
        if self.head.length is not None:
            return self._read_remaining()
        piece, self._buffer = self._buffer, b""
        piece = piece or self._receive()
        self._ended = not piece
        return piece

    def _read_head(self, method: str) -> ResponseHead:
        for _ in range(1 + _MAX_INTERIM_RESPONSES):
            head = parse_head(self._receive_head(), method=method)
            if head.status >= HTTPStatus.OK:
                return head
            # Returned as the response, it would leave the response itself to the next request (RFC 9110 §15.2).
            if head.status == HTTPStatus.SWITCHING_PROTOCOLS:
                break
        raise MalformedResponse

    def _receive_head(self) -> bytes:
        buffer = bytearray(self._buffer or self._receive())
        if not buffer:
            raise ConnectionResetError  # nothing is known of a response
        searched = 0
        while (end := _HEAD_END.search(buffer, searched)) is None:
            if len(buffer) > _MAX_HEAD_BYTES or not buffer.startswith(_VERSION[: len(buffer)]):
                raise MalformedResponse
            searched = max(0, len(buffer) - 3)
            received = self._receive()
            if not received:
                raise MalformedResponse
            buffer += received
        if end.start() > _MAX_HEAD_BYTES:
            raise MalformedResponse
        self._buffer = bytes(buffer[end.end() :])
        return bytes(buffer[: end.start()])

    def _read_remaining(self) -> bytes:
        if self._remaining == 0:
            self._ended = True
            return b""
        received = self._buffer or self._receive()
        if not received:
            raise MalformedResponse
        piece, self._buffer = received[: self._remaining], received[self._remaining :]
        self._remaining -= len(piece)
        return piece

    def _read_chunks(self) -> bytes:
        while True:
            data = self._decode_chunks()
            if data or self._ended:
                return data
            received = self._receive()
            if not received:
                raise MalformedResponse
            self._buffer += received

    def _decode_chunks(self) -> bytes:
        """Return the data of the chunks in the buffer, and keep there what cannot be parsed yet."""
        buffer, position = self._buffer, 0
        pieces: list[bytes] = []
        while not self._ended:
            if self._remaining:
                piece = buffer[position : position + self._remaining]
                pieces.append(piece)
                position += len(piece)
                self._remaining -= len(piece)
                if self._remaining:
                    break
            size = _CHUNK_SIZE.match(buffer, position)
            # The line break of the last size begins the trailers, which are discarded.
            end = -1 if size is None or int(size[1], 16) else buffer.find(b"\r\n\r\n", size.end() - 2)
            if size is not None and int(size[1], 16):
                self._remaining, position = int(size[1], 16), size.end()
            elif end >= 0:
                self._ended, position = True, end + 4
            elif len(buffer) - position > _MAX_LINE_BYTES or (size is None and buffer.find(b"\r\n", position + 2) >= 0):
                raise MalformedResponse
            else:
                break
        self._buffer = buffer[position:]
        return b"".join(pieces)

    def _receive(self) -> bytes:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        silence = self.silence_seconds
        if silence is not None and silence < left:
            set_timeout(self._socket, silence)
            try:
                return self._socket.recv(_RECEIVE_BYTES)
            except TimeoutError:
                raise StillSilent from None
        set_timeout(self._socket, left)
        # Never less, even where the rest is known: TLS keeps what it decrypted beyond that, where no poll sees it.
        return self._socket.recv(_RECEIVE_BYTES)
