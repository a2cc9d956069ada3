"""A proxy to the database that can be cut, also between a COMMIT and its response."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy.engine import make_url


@dataclass
class DatabaseProxy:
    """A proxy between a service and its PostgreSQL."""

    url: str
    to: tuple[str, int]
    listener: socket.socket
    is_cut: bool = False
    # The unit of work that executes this is committed, but the client gets no response.
    swallows_commit_of: bytes | None = None
    swallowed: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)

    def cut(self) -> None:
        """Cut all connections."""
        self.is_cut = True
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def restore(self) -> None:
        self.is_cut = False

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self.listener.accept()
                threading.Thread(target=self._relay, args=[client], daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, suppress(OSError), socket.create_connection(self.to) as server:
            if self.is_cut:
                return
            ends = {client, server}
            self._open |= ends
            muted = threading.Event()
            back = threading.Thread(target=self._relay_responses, args=[server, client, muted], daemon=True)
            back.start()
            matched = False
            while data := client.recv(65_536):
                wanted = self.swallows_commit_of
                matched = matched or (wanted is not None and wanted in data)
                if matched and b"COMMIT" in data:
                    muted.set()
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            back.join()
            self._open -= ends

    def _relay_responses(self, server: socket.socket, client: socket.socket, muted: threading.Event) -> None:
        with suppress(OSError):
            while data := server.recv(65_536):
                if muted.is_set():
                    # The response to COMMIT.
                    self.cut()
                    self.swallowed.set()
                    return
                client.sendall(data)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


@contextmanager
def database_proxy(database_url: str) -> Iterator[DatabaseProxy]:
    """Run a proxy to a database on loopback until the block ends."""
    url = make_url(database_url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = url.set(host="127.0.0.1", port=listener.getsockname()[1]).render_as_string(hide_password=False)
        proxy = DatabaseProxy(here, (str(url.host), int(url.port or 5432)), listener)
        serving = threading.Thread(target=proxy.serve, daemon=True)
        serving.start()
        yield proxy
        proxy.cut()
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(5)
