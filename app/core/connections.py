"""Keeps dead database connections from units of work without asking the server each time.

A ping at every checkout, as pools offer it, costs one round trip per unit. Here a connection is asked only when it
rested for a while or when its socket has something to say, which is how a server that closed it is noticed.
"""

from __future__ import annotations

import select
import sqlite3
import time
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.pool import ConnectionPoolEntry

_TRUSTED_SECONDS = 5.0
_RESTING_SINCE = "resting_since"


@event.listens_for(Engine, "checkin")
def _note_rest(_connection: Any, entry: ConnectionPoolEntry) -> None:
    entry.info[_RESTING_SINCE] = time.monotonic()


@event.listens_for(Engine, "checkout")
def _refuse_dead(connection: Any, entry: ConnectionPoolEntry, _fairy: object) -> None:
    """Make the pool open another connection in place of a dead one. Raises: DisconnectionError."""
    since = entry.info.pop(_RESTING_SINCE, None)
    if since is None or isinstance(connection, sqlite3.Connection):
        return
    if time.monotonic() - since < _TRUSTED_SECONDS and not _has_something_to_say(connection):
        return
    try:
        # Without a transaction, so that the one round trip is all.
        connection.autocommit = True
        connection.execute("SELECT 1")
        connection.autocommit = False
    except connection.Error:
        raise DisconnectionError from None


def _has_something_to_say(connection: Any) -> bool:
    # Not select(), which knows no descriptors above 1023.
    socket = select.poll()
    socket.register(connection.fileno(), select.POLLIN)
    return bool(socket.poll(0))
