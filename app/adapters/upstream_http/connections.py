"""Connections: opened to an address that was checked, rested between two requests, dropped when they are dead."""

from __future__ import annotations

import functools
import os
import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import certifi

from app.ports.errors import Rejected, Unreachable

_IDLE_SECONDS = 25.0
_MAX_IDLE = 1100
_PORTS = {"http": 80, "https": 443}

AddressCheck = Callable[[str], bool]


class Connection:
    """One connection; it resolves its host once and connects to an address that passed the check."""

    def __init__(self, origin: str, *, context: ssl.SSLContext, allows: AddressCheck | None) -> None:
        """Take `scheme://host[:port]`. Raises: Rejected for what is none."""
        self.origin = origin
        self._context = context
        self._allows = allows
        try:
            parts = urlsplit(origin)
            self._host, self._port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise Rejected("address_not_allowed") from None
        self._secure = parts.scheme == "https"
        self.socket: socket.socket | None = None
        self.rested_since = 0.0

    def open(self, *, seconds: float) -> None:
        """Connect. Raises: Unreachable, Rejected."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise Unreachable("name_not_found") from None
        if self._allows is not None and not all(self._allows(str(entry[4][0])) for entry in found):
            # A public address beside a private one is how a name is made to lead elsewhere the next time.
            raise Rejected("address_not_allowed")
        deadline = time.monotonic() + seconds
        for family, kind, protocol, _, address in found:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            try:
                self.socket = self._connected(socket.socket(family, kind, protocol), address, left)
            except OSError:
                continue
            return
        raise Unreachable("no_connection")

    def is_alive(self) -> bool:
        """Tell whether a rested connection can be used again; one that has something to say cannot."""
        if self.socket is None or self.has_rested_too_long():
            return False
        # Not select(), which knows no descriptors above 1023.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def has_rested_too_long(self) -> bool:
        """Tell whether the other side may be about to close it."""
        return time.monotonic() - self.rested_since > _IDLE_SECONDS

    def close(self) -> None:
        """Close it, whatever is on its way. May be repeated."""
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _connected(self, new: socket.socket, address: Any, seconds: float) -> socket.socket:
        try:
            new.settimeout(seconds)
            new.connect(address)
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                # The name is what the certificate must be for, whichever address was chosen.
                return self._context.wrap_socket(new, server_hostname=self._host)
        except BaseException:
            new.close()
            raise
        return new


@functools.cache
def _tls() -> ssl.SSLContext:
    """Return the one context of the process: reading the authorities takes longer than a handshake."""
    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class ConnectionPool:
    """Idle connections by origin, the last used first; usable from many threads. Nobody waits for one."""

    def __init__(self, *, allows: AddressCheck | None = None) -> None:
        """Make an empty pool; `allows` checks every address that a name resolves to."""
        self._allows = allows
        self._context = _tls()
        self._lock = threading.Lock()
        self._idle: dict[str, deque[Connection]] = {}
        self._resting = 0
        self._process = os.getpid()

    def take(self, origin: str, *, connect_seconds: float) -> Connection:
        """Return an open connection. Raises: Unreachable, Rejected."""
        while (idle := self._pop(origin)) is not None:
            if idle.is_alive():
                return idle
            idle.close()
        connection = Connection(origin, context=self._context, allows=self._allows)
        connection.open(seconds=connect_seconds)
        return connection

    def put(self, connection: Connection) -> None:
        """Let a connection rest whose answer was read to its end."""
        connection.rested_since = time.monotonic()
        with self._lock:
            left_over = self._drop_old(connection.origin if self._resting < _MAX_IDLE else None)
            if self._process == os.getpid() and self._resting < _MAX_IDLE:
                self._idle.setdefault(connection.origin, deque()).append(connection)
                self._resting += 1
            else:
                left_over.append(connection)
        for old in left_over:
            old.close()

    def close(self) -> None:
        """Close all that rest."""
        with self._lock:
            resting = [connection for rested in self._idle.values() for connection in rested]
            self._idle.clear()
            self._resting = 0
        for connection in resting:
            connection.close()

    def _pop(self, origin: str) -> Connection | None:
        with self._lock:
            if self._process != os.getpid():
                # Sockets must not be shared with the process that this one was forked from.
                self._idle.clear()
                self._resting, self._process = 0, os.getpid()
            rested = self._idle.get(origin)
            if not rested:
                return None
            self._resting -= 1
            return rested.pop()

    def _drop_old(self, origin: str | None) -> list[Connection]:
        """Take out what nobody came back for, of one origin or of all."""
        dropped = []
        for name in [origin] if origin is not None else list(self._idle):
            rested = self._idle.get(name)
            while rested and rested[0].has_rested_too_long():
                dropped.append(rested.popleft())
                self._resting -= 1
            if rested is not None and not rested:
                del self._idle[name]
        return dropped
