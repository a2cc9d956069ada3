"""Reading requests before the application: where one probably ends, and errors of its body."""

import re
from typing import Any

from gunicorn.http import errors as http_errors

from server.client_socket import MalformedBody

MAX_BUFFERED_BYTES = 64 * 1024
_HEAD_END = b"\r\n\r\n"
# Only an estimate of how much to wait for: the parser decides where a body ends.
_CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,5})[ \t]*\r\n", re.IGNORECASE)
_EXPECT_HEADER = re.compile(rb"\r\nexpect:", re.IGNORECASE)


def expected_bytes(buffer: bytes | bytearray, *, searched_bytes: int = 0) -> int:
    """Return how many bytes a thread needs to start: a head and a small body; 0 while the head is incomplete.

    A malformed head is passed on immediately, and so is a head with Expect or without a length of the body.
    """
    search_start = max(0, searched_bytes - len(_HEAD_END))
    end = buffer.find(_HEAD_END, search_start)
    if end < 0:
        return len(buffer) if buffer.find(b"\n\n", search_start) >= 0 else 0
    head = bytes(buffer[: end + len(_HEAD_END)])
    length_match = _CONTENT_LENGTH.search(head)
    if length_match is None or _EXPECT_HEADER.search(head):
        return len(head)
    total = len(head) + int(length_match[1])
    return total if total <= MAX_BUFFERED_BYTES else len(head)


class BodyReader:
    """gunicorn's reader of a body, with `MalformedBody` instead of its own errors."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def read(self, size: int) -> bytes:
        """Read at most `size` bytes. Raises: MalformedBody."""
        try:
            data: bytes = self._reader.read(size)
        except http_errors.ParseException:
            raise MalformedBody from None
        return data
