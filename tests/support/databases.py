"""A way to the database that can be cut, also between a COMMIT and its answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy.engine import make_url


@dataclass
class Way:
    """What stands between a service and its PostgreSQL."""

    url: str
    to: tuple[str, int]
    listener: socket.socket
    is_cut: bool = False
    # The unit in which this was said is committed, and nobody is told.
    swallows_commit_of: bytes | None = None
    swallowed: threading.Event = field(default_factory=threading.Event)
    _open: set[socket.socket] = field(default_factory=set)

    def cut(self) -> None:
        """Let nothing through any more."""
        self.is_cut = True
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        self.is_cut = False

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self.listener.accept()
                threading.Thread(target=self._carry, args=[caller], daemon=True).start()

    def _carry(self, caller: socket.socket) -> None:
        with caller, suppress(OSError), socket.create_connection(self.to) as server:
            if self.is_cut:
                return
            ends = {caller, server}
            self._open |= ends
            mute = threading.Event()
            back = threading.Thread(target=self._answer, args=[server, caller, mute], daemon=True)
            back.start()
            marked = False
            while said := caller.recv(65_536):
                wanted = self.swallows_commit_of
                marked = marked or (wanted is not None and wanted in said)
                if marked and b"COMMIT" in said:
                    mute.set()
                server.sendall(said)
            server.shutdown(socket.SHUT_WR)
            back.join()
            self._open -= ends

    def _answer(self, server: socket.socket, caller: socket.socket, mute: threading.Event) -> None:
        with suppress(OSError):
            while said := server.recv(65_536):
                if mute.is_set():
                    # The answer to COMMIT: it is done.
                    self.cut()
                    self.swallowed.set()
                    return
                caller.sendall(said)
        with suppress(OSError):
            caller.shutdown(socket.SHUT_RDWR)


@contextmanager
def way_to(database_url: str) -> Iterator[Way]:
    """Serve on loopback what leads to a database, until the block ends."""
    url = make_url(database_url)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        here = url.set(host="127.0.0.1", port=listener.getsockname()[1]).render_as_string(hide_password=False)
        way = Way(here, (str(url.host), int(url.port or 5432)), listener)
        serving = threading.Thread(target=way.serve, daemon=True)
        serving.start()
        yield way
        way.cut()
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(5)
