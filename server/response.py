"""gunicorn's response, with the head and the first piece of the body in one write."""

from __future__ import annotations

from gunicorn.http import wsgi

_MAX_JOINED_BYTES = 65_536


class Response(wsgi.Response):  # type: ignore[misc, unused-ignore]
    """Most responses are one small piece: a second system call would cost each of them, and often a second packet."""

    headers_sent: bool
    _unsent_head = b""

    def send_headers(self) -> None:
        """Hold the head back for the first piece."""
        if not self.headers_sent:
            lines = [
                *self.default_headers(),
                *(f"{name}: {value}\r\n" for name, value in self.headers),
                "\r\n",
            ]
            self._unsent_head = "".join(lines).encode("latin-1")
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
