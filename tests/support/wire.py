"""Raw bytes on a socket to the real server, and its responses."""

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

PATIENCE_SECONDS = 90.0


CHUNKED = b"Transfer-Encoding: chunked"


def post(*headers: bytes, body: bytes = b"", version: bytes = b"1.1", path: bytes = b"/v1/keys") -> bytes:
    """Return a POST with these header lines and its host."""
    lines = [b"POST " + path + b" HTTP/" + version, b"Host: localhost", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def get(target: bytes, *headers: bytes, method: bytes = b"GET", version: bytes = b"HTTP/1.1") -> bytes:
    """Return a GET with these header lines and its host."""
    return b"\r\n".join([method + b" " + target + b" " + version, b"Host: localhost", *headers]) + b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, with header names in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(slots=True)
class Wire:
    """The service and everything received from it."""

    service: WebService
    key: str
    received: bytearray = field(default_factory=bytearray)

    @contextmanager
    def connection(self, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
        with socket.socket() as made:
            made.settimeout(PATIENCE_SECONDS)
            if receive_bytes is not None:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            made.connect(("127.0.0.1", self.service.port))
            yield made

    def exchange(self, *pieces: bytes) -> list[Answer]:
        """Send, close the sending side, and return all responses until the server closes."""
        with self.connection() as made:
            # A server that refuses early closes early.
            with suppress(OSError):
                for piece in pieces:
                    made.sendall(piece)
                made.shutdown(socket.SHUT_WR)
            return self.read_all(made)

    def read_all(self, made: socket.socket) -> list[Answer]:
        """Read until the server closes."""
        raw = bytearray()
        with suppress(ConnectionResetError):
            while piece := made.recv(65_536):
                raw += piece
        self.received += raw
        return answers_in(bytes(raw))

    def is_well(self) -> bool:
        status, _, body = self.service.ask("GET", "/v1/health")
        self.received += body
        return status == 200


def worker_of(service: WebService) -> int:
    """Return the process id of a service's only web worker."""
    (worker,) = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    return int(worker)


def holds_connections(service: WebService) -> bool:
    """Return whether the only web worker still holds a client's connection (proc(5), fd and net/tcp)."""
    connected = {"01", "08"}  # ESTABLISHED, CLOSE_WAIT
    listed: set[str] = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            columns = line.split()
            if columns[1].endswith(f":{service.port:04X}") and columns[3] in connected:
                return True
            listed.add(columns[9])
    listed |= {line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines()[1:]}
    held: set[str] = set()
    for descriptor in Path(f"/proc/{worker_of(service)}/fd").iterdir():
        with suppress(FileNotFoundError):
            kind, _, inode = str(descriptor.readlink()).partition(":")
            if kind == "socket":
                held.add(inode.strip("[]"))
    # The kernel lists no connection that its client reset, but a thread may still have it open.
    return not held <= listed


def lingering_connections(service: WebService) -> int:
    """Return how many connections the service has closed for writing and still holds (proc(5), net/tcp)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    # FIN_WAIT2; the kernel lists one that no process holds without an inode.
    return sum(row[1].endswith(f":{service.port:04X}") and row[3] == "05" and row[9] != "0" for row in rows)


def cpu_seconds(process: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(process: int) -> int:
    """Return the resident memory of a process."""
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def answers_in(raw: bytes) -> list[Answer]:
    """Parse the responses of a server."""
    found = []
    while raw:
        head, end, raw = raw.partition(b"\r\n\r\n")
        assert end, f"an incomplete response: {head!r}"
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
