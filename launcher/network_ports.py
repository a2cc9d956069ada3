"""Choice of loopback ports: the same on each start unless they are taken."""

from __future__ import annotations

import socket
from collections.abc import Collection

LOOPBACK = "127.0.0.1"
_LAST_PORT = 65_535


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # As servers do: a port with connections in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def choose_port(preferred: int, *, taken: Collection[int] = (), search_width: int = 1) -> int:
    """Return the preferred port, or the first of the next `width` ports that are free and not in `taken`."""
    for first in range(preferred, _LAST_PORT - search_width):
        if all(port not in taken and is_free(port) for port in range(first, first + search_width)):
            return first
    raise OSError(f"no free port from {preferred} upwards")


def accepts_connections(port: int) -> bool:
    """Return whether something accepts connections on this loopback port."""
    try:
        with socket.create_connection((LOOPBACK, port), timeout=1):
            return True
    except OSError:
        return False
