"""Replacement of dead database connections without a ping at every checkout.

SQLAlchemy's pre-ping costs a round trip per unit. Here a connection is checked only after a while of idleness, or when
its socket is readable, as it is once the server has closed it.
"""

import select
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

UNCHECKED_IDLE_SECONDS = 5.0
_IDLE_SINCE = "resting_since"


def install(engine: Engine) -> None:
    event.listen(engine, "checkin", _record_idle_since)
    event.listen(engine, "checkout", _discard_dead_connection)


def _record_idle_since(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info[_IDLE_SINCE] = time.monotonic()


def _discard_dead_connection(connection: Any, entry: ConnectionPoolEntry, _fairy: object) -> None:
    """Make the pool replace a dead connection. Raises: DisconnectionError."""
    since = entry.info.pop(_IDLE_SINCE, None)
    if since is not None and not is_alive(connection, since):
        raise DisconnectionError


def is_alive(connection: Any, idle_since: float) -> bool:
    """Return whether a connection that idles since an instant of the monotonic clock can be used."""
    if time.monotonic() - idle_since < UNCHECKED_IDLE_SECONDS and not _is_readable(connection):
        return True
    was_autocommit = connection.autocommit
    try:
        # Without a transaction, so that it is a single round trip.
        connection.autocommit = True
        connection.execute("SELECT 1")
        connection.autocommit = was_autocommit
    except connection.Error:
        return False
    return True


def _is_readable(connection: Any) -> bool:
    # select() fails on descriptors above 1023.
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))
