"""Bytes on a socket to the real server: what no client library would send, and what comes back."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.services import WebService

PATIENCE_SECONDS = 60.0


CHUNKED = b"Transfer-Encoding: chunked"


def post(*headers: bytes, body: bytes = b"", version: bytes = b"1.1", path: bytes = b"/v1/keys") -> bytes:
    """Write a POST with these lines and no others but its host."""
    lines = [b"POST " + path + b" HTTP/" + version, b"Host: x", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(target: bytes, *headers: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> bytes:
    """Write a request without a body, likewise."""
    return b"\r\n".join([method + b" " + target + b" " + version, b"Host: x", *headers]) + b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer, with names of headers in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Wire:
    """The service and everything that was heard from it."""

    service: WebService
    key: str
    heard: bytearray = field(default_factory=bytearray)

    @contextmanager
    def connection(self, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
        with socket.socket() as made:
            made.settimeout(PATIENCE_SECONDS)
            if receive_bytes is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            made.connect(("127.0.0.1", self.service.port))
            yield made

    def say(self, *pieces: bytes) -> list[Answer]:
        """Send, say that nothing more is coming, and return all answers until the other side says so, too."""
        with self.connection() as made:
            # Who refuses early closes early.
            with suppress(BrokenPipeError, ConnectionResetError):
                for piece in pieces:
                    made.sendall(piece)
                made.shutdown(socket.SHUT_WR)
            return self.hear(made)

    def hear(self, made: socket.socket) -> list[Answer]:
        """Read to the end."""
        raw = bytearray()
        with suppress(ConnectionResetError):
            while piece := made.recv(65_536):
                raw += piece
        self.heard += raw
        return answers_in(bytes(raw))

    def is_well(self) -> bool:
        status, _, body = self.service.ask("GET", "/v1/health")
        self.heard += body
        return status == 200


def worker_of(service: WebService) -> int:
    """Return the id of a service's only process that serves."""
    (worker,) = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    return int(worker)


def cpu_seconds(process: int) -> float:
    """Return what a process has computed so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers_in(raw: bytes) -> list[Answer]:
    """Take apart what a server wrote."""
    found = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        assert end, f"an answer that breaks off: {head!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        version, status, _ = first.split(" ", 2)
        assert version in {"HTTP/1.1", "HTTP/1.0"}
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body, raw = _body(headers, raw) if int(status) >= 200 else (b"", raw)
        found.append(Answer(int(status), headers, body))
    return found


def _body(headers: dict[str, str], raw: bytes) -> tuple[bytes, bytes]:
    if headers.get("transfer-encoding") == "chunked":
        body = b""
        while True:
            size, _, raw = raw.partition(b"\r\n")
            piece, raw = raw[: int(size, 16)], raw[int(size, 16) + 2 :]
            if not piece:
                return body, raw
            body += piece
    length = int(headers.get("content-length", len(raw)))
    return raw[:length], raw[length:]
