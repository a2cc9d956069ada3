"""The replica of the database from which reports are read while it is fresh.

Its newest heartbeat tells how old it is, also when it has lost its primary.
"""

import time
from datetime import timedelta
from weakref import WeakKeyDictionary

import structlog
from sqlalchemy import Engine, func, select
from sqlalchemy.exc import SQLAlchemyError

from app.core import clock
from app.db.leases import Heartbeat
from app.extensions import db

_log = structlog.get_logger(__name__)
NAME = "replica"
MAX_AGE = timedelta(seconds=60)
_CHECKED_FOR_SECONDS = 5.0
_checked: WeakKeyDictionary[Engine, tuple[float, bool]] = WeakKeyDictionary()


def report_engine() -> Engine:
    """Return the engine of the replica if one is configured and fresh, else of the database itself."""
    replica = db.engines.get(NAME)
    if replica is None:
        return db.engine
    checked_at, is_fresh = _checked.get(replica, (0.0, False))
    if not checked_at or time.monotonic() > checked_at + _CHECKED_FOR_SECONDS:
        is_fresh = _is_fresh(replica)
        _checked[replica] = time.monotonic(), is_fresh
    return replica if is_fresh else db.engine


def age(replica: Engine) -> timedelta | None:
    """Return how old a replica is at most; None if it has no heartbeat. Raises: SQLAlchemyError."""
    with replica.connect() as connection:
        newest = connection.scalar(select(func.max(Heartbeat.at)))
    return None if newest is None else clock.now() - newest


def _is_fresh(replica: Engine) -> bool:
    try:
        found = age(replica)
    except SQLAlchemyError as error:
        _log.warning("replica_unavailable", error=type(error).__name__)
        return False
    if found is None or found > MAX_AGE:
        _log.warning("replica_outdated", age_seconds=None if found is None else int(found.total_seconds()))
        return False
    return True
