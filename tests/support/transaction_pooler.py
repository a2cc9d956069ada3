"""A pooler in transaction mode that does not know prepared statements, like PgBouncer before 1.22.

Each transaction is executed on the next of a few connections, and startup parameters are ignored.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy.engine import URL, make_url

_NEGOTIATIONS = {80877103, 80877104}  # SSLRequest, GSSENCRequest
_READY = b"Z\0\0\0\5I"


@dataclass
class _Server:
    connection: socket.socket
    greeting: bytes
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextlib.contextmanager
def transaction_pooler(database_url: str, *, connections: int = 3) -> Iterator[str]:
    """Yield the URL of a pooler of this database, which must need no password."""
    url = make_url(database_url)
    with contextlib.ExitStack() as stack:
        servers = itertools.cycle([_connect(url, stack) for _ in range(connections)])
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        threading.Thread(target=_accept, args=(listener, servers), daemon=True).start()
        yield url.set(port=listener.getsockname()[1]).render_as_string(hide_password=False)
        listener.shutdown(socket.SHUT_RDWR)


def _connect(url: URL, stack: contextlib.ExitStack) -> _Server:
    connection = stack.enter_context(socket.create_connection((url.host, url.port)))
    content = struct.pack("!I", 196608) + f"user\0{url.username}\0database\0{url.database}\0\0".encode()
    connection.sendall(struct.pack("!I", 4 + len(content)) + content)
    greeting = b""
    while not greeting.endswith(_READY):
        greeting += connection.recv(65536)
    return _Server(connection, greeting)


def _accept(listener: socket.socket, servers: Iterator[_Server]) -> None:
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, servers), daemon=True).start()


def _serve(client: socket.socket, servers: Iterator[_Server]) -> None:
    with client, contextlib.suppress(OSError, EOFError):
        while struct.unpack("!I", _exactly(client, struct.unpack("!I", _exactly(client, 4))[0] - 4)[:4])[0] in (
            _NEGOTIATIONS
        ):
            client.sendall(b"N")
        client.sendall(next(servers).greeting)
        while True:
            _run_transaction(client, next(servers))


def _run_transaction(client: socket.socket, server: _Server) -> None:
    first = _read_request(client)
    with server.lock:
        state, request = b"", first
        try:
            while state != b"I":
                server.connection.sendall(request)
                state = _relay_response(server.connection, client)
                request = b"" if state == b"I" else _read_request(client)
        finally:
            if state in {b"T", b"E"}:
                server.connection.sendall(b"Q" + struct.pack("!I", 13) + b"ROLLBACK\0")
                _relay_response(server.connection, None)


def _read_request(client: socket.socket) -> bytes:
    """Return the messages up to the next Query or Sync. Raises: EOFError."""
    request = b""
    while True:
        message = _read_message(client)
        if message[:1] == b"X":
            raise EOFError
        request += message
        if message[:1] in b"QS":
            return request


def _relay_response(server: socket.socket, client: socket.socket | None) -> bytes:
    """Return the state of the transaction after a response."""
    while True:
        message = _read_message(server)
        if client is not None:
            client.sendall(message)
        if message[:1] == b"Z":
            return message[5:]


def _read_message(connection: socket.socket) -> bytes:
    head = _exactly(connection, 5)
    return head + _exactly(connection, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        if not (chunk := connection.recv(size - len(content))):
            raise EOFError
        content += chunk
    return content
