"""gunicorn's response, with the head and the first piece of the body in one write, and no upgraded connections."""

import time
from collections.abc import Iterable
from functools import lru_cache

from gunicorn import util
from gunicorn.http import wsgi
from gunicorn.http.errors import InvalidResponseHeader, InvalidResponseHeaderName

_MAX_JOINED_BYTES = 65_536


class Response(wsgi.Response):  # type: ignore[misc, unused-ignore]
    """Most responses are one small piece: a second system call would cost each of them, and often a second packet."""

    headers_sent: bool
    _unsent_head = b""

    def process_headers(self, headers: Iterable[tuple[str, str]]) -> None:
        """Check the application's headers, as gunicorn does, and leave out those that the server sets."""
        for name, value in headers:
            lower = _checked_name(name)
            if not wsgi.HEADER_VALUE_RE.fullmatch(value):
                raise InvalidResponseHeader(repr(name))
            if lower == "content-length":
                self.response_length = int(value)
            if lower not in util.hop_headers:
                self.headers.append((name, value.strip(" \t")))

    def send_headers(self) -> None:
        """Hold the head back for the first piece."""
        if not self.headers_sent:
            major, minor = self.req.version
            lines = [
                f"HTTP/{major}.{minor} {self.status}",
                f"Server: {self.version}",
                f"Date: {_date(int(time.time()))}",
                f"Connection: {'close' if self.should_close() else 'keep-alive'}",
                *(["Transfer-Encoding: chunked"] if self.chunked else ()),
                *[f"{name}: {value}" for name, value in self.headers],
                "\r\n",
            ]
            self._unsent_head = "\r\n".join(lines).encode("latin-1")
            self.headers_sent = True

    def write(self, arg: bytes) -> None:
        """Write a piece of the body; an empty first piece sends the head."""
        super().write(arg)
        self._send(b"")

    def close(self) -> None:
        """Write what is missing of the response."""
        self.send_headers()
        self._send(b"0\r\n\r\n" if self.chunked else b"")

    def _emit_body(self, data: bytes) -> None:
        self._send(b"%X\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def _send(self, data: bytes) -> None:
        if self._unsent_head:
            head, self._unsent_head = self._unsent_head, b""
            if len(data) > _MAX_JOINED_BYTES:
                # A copy of it would take as much memory again for as long as the client reads.
                self.sock.sendall(head)
            else:
                data = head + data
        if data:
            self.sock.sendall(data)


@lru_cache(maxsize=1024)
def _checked_name(name: str) -> str:
    if not wsgi.TOKEN_RE.fullmatch(name):
        raise InvalidResponseHeaderName(repr(name))
    return name.lower()


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return str(util.http_date(seconds))
