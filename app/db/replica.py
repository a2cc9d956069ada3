"""The replica of the database from which reports are read while it is fresh.

Its newest heartbeat tells how old it is, also when it has lost its primary.
"""

from datetime import datetime, timedelta
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
_CHECKED_FOR = timedelta(seconds=5)
_checked: WeakKeyDictionary[Engine, tuple[datetime, bool]] = WeakKeyDictionary()


def report_engine() -> Engine:
    """Return the engine of the replica if one is configured and fresh, else of the database itself."""
    replica = db.engines.get(NAME)
    if replica is None:
        return db.engine
    found = _checked.get(replica)
    if found is None or clock.now() > found[0] + _CHECKED_FOR:
        reason = problem()
        if reason is not None:
            _log.warning("replica_not_used", reason=reason)
        # As of the end of the check: a host that is gone takes as long as a check is valid.
        found = _checked[replica] = clock.now(), reason is None
    return replica if found[1] else db.engine


def problem() -> str | None:
    """Return why the replica is not used; None if it is, or if none is configured."""
    replica = db.engines.get(NAME)
    if replica is None:
        return None
    try:
        with replica.connect() as connection:
            newest = connection.scalar(select(func.max(Heartbeat.at)))
    except SQLAlchemyError:
        return "it does not respond"
    is_fresh = newest is not None and clock.now() < newest + MAX_AGE
    return None if is_fresh else "it has no heartbeat of a worker of the last minute"
