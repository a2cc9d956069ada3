"""Connections: opened to a checked address, pooled between two requests, closed when they are dead."""

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

_MAX_IDLE = 1100
_IDLE_SECONDS = 25.0
_PORTS = {"http": 80, "https": 443}

AddressCheck = Callable[[str], bool]


class UpstreamConnection:
    """One connection; it resolves its host once and connects to an address that passed the check."""

    def __init__(self, origin: str, *, context: ssl.SSLContext, allows: AddressCheck | None) -> None:
        """Store `scheme://host[:port]`. Raises: Rejected for a malformed origin."""
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
        self.idle_since = 0.0

    def open(self, *, seconds: float) -> None:
        """Connect. Raises: Unreachable, Rejected."""
        try:
            found = socket.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise Unreachable("name_not_found") from None
        if self._allows is not None and not all(self._allows(str(entry[4][0])) for entry in found):
            # A public address next to a private one is the technique of DNS rebinding.
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
        """Return whether an idle connection can be used again; one with unread data cannot."""
        if self.socket is None or self.is_idle_expired():
            return False
        # Not select(), which does not support descriptors above 1023.
        poll = select.poll()
        poll.register(self.socket, select.POLLIN)
        return not poll.poll(0)

    def is_idle_expired(self) -> bool:
        """Return whether the server may be about to close it."""
        return time.monotonic() - self.idle_since > _IDLE_SECONDS

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None

    def _connected(self, new: socket.socket, address: Any, seconds: float) -> socket.socket:
        try:
            new.settimeout(seconds)
            new.connect(address)
            new.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._secure:
                # The certificate must be valid for the name, whichever address was chosen.
                return self._context.wrap_socket(new, server_hostname=self._host)
        except BaseException:
            new.close()
            raise
        return new


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Return the process's only context: loading the authorities takes longer than a handshake."""
    context = ssl.create_default_context(cafile=certifi.where())
    context.set_alpn_protocols(["http/1.1"])
    return context


class ConnectionPool:
    """Idle connections by origin, the most recent first; usable from many threads, without waiting."""

    def __init__(self, *, allows: AddressCheck | None = None) -> None:
        self._new_connection = functools.partial(UpstreamConnection, context=tls_context(), allows=allows)
        self._lock = threading.Lock()
        self._idle: dict[str, deque[UpstreamConnection]] = {}
        self._idle_count = 0
        self._process = os.getpid()

    def acquire(self, origin: str, *, connect_seconds: float) -> UpstreamConnection:
        """Return an open connection. Raises: Unreachable, Rejected."""
        while (idle := self._pop(origin)) is not None:
            if idle.is_alive():
                return idle
            idle.close()
        connection = self._new_connection(origin)
        connection.open(seconds=connect_seconds)
        return connection

    def release(self, connection: UpstreamConnection) -> None:
        connection.idle_since = time.monotonic()
        with self._lock:
            expired = self._remove_expired(connection.origin if self._idle_count < _MAX_IDLE else None)
            if self._process == os.getpid() and self._idle_count < _MAX_IDLE:
                self._idle.setdefault(connection.origin, deque()).append(connection)
                self._idle_count += 1
            else:
                expired.append(connection)
        for old in expired:
            old.close()

    def close(self) -> None:
        with self._lock:
            resting = [connection for rested in self._idle.values() for connection in rested]
            self._idle.clear()
            self._idle_count = 0
        for connection in resting:
            connection.close()

    def _pop(self, origin: str) -> UpstreamConnection | None:
        with self._lock:
            if self._process != os.getpid():
                # Sockets must not be shared with the parent process after a fork.
                self._idle.clear()
                self._idle_count, self._process = 0, os.getpid()
            rested = self._idle.get(origin)
            if not rested:
                return None
            self._idle_count -= 1
            return rested.pop()

    def _remove_expired(self, origin: str | None) -> list[UpstreamConnection]:
        dropped = []
        for name in [origin] if origin is not None else list(self._idle):
            rested = self._idle.get(name)
            while rested and rested[0].is_idle_expired():
                dropped.append(rested.popleft())
                self._idle_count -= 1
            if rested is not None and not rested:
                del self._idle[name]
        return dropped
