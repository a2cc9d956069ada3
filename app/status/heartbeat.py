"""When a worker last finished a pass, for the health check. Alone writes `heartbeats`."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import String, update
from sqlalchemy.orm import Mapped, mapped_column

from app.core import clock
from app.core.columns import UtcDateTime
from app.core.unit_of_work import unit_of_work
from app.extensions import Model, db

_FRESH_FOR = timedelta(seconds=60)
_WORKER = "worker"


class Heartbeat(Model):
    """When a kind of process was last alive."""

    __tablename__ = "heartbeats"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


def beat() -> None:
    """Note that a worker is alive."""
    with unit_of_work() as session:
        beaten = session.execute(update(Heartbeat).where(Heartbeat.name == _WORKER).values(at=clock.now()))
        if beaten.rowcount == 0:  # type: ignore[attr-defined]
            session.merge(Heartbeat(name=_WORKER, at=clock.now()))


def is_fresh() -> bool:
    """Tell whether a worker was alive within the last minute, in the current unit."""
    row = db.session.get(Heartbeat, _WORKER)
    return row is not None and row.at + _FRESH_FOR > clock.now()
