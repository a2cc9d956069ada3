"""When a kind of process was last alive, for those that depend on it. Alone writes `heartbeats`."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import String, select, update
from sqlalchemy.orm import Mapped, mapped_column

from app.core import clock
from app.core.columns import UtcDateTime
from app.core.unit_of_work import unit_of_work
from app.extensions import Model, db


class Heart(StrEnum):
    """The kinds of process that are listened to."""

    WORKER = "worker"
    SHOPPER = "shopper"


_FRESH_FOR = {Heart.WORKER: timedelta(seconds=60), Heart.SHOPPER: timedelta(seconds=120)}


class Heartbeat(Model):
    """When a kind of process was last alive."""

    __tablename__ = "heartbeats"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


def beat(heart: Heart = Heart.WORKER) -> None:
    """Note that a process of this kind is alive."""
    with unit_of_work() as session:
        beaten = session.execute(
            update(Heartbeat).where(Heartbeat.name == heart.value).values(at=clock.now())
        )
        if beaten.rowcount == 0:  # type: ignore[attr-defined]
            session.merge(Heartbeat(name=heart.value, at=clock.now()))


def ages() -> dict[str, int]:
    """Return how many seconds ago each kind of process was last alive, those left out that never were."""
    now = clock.now()
    return {
        name: max(0, int((now - at).total_seconds()))
        for name, at in db.session.execute(select(Heartbeat.name, Heartbeat.at))
    }


def is_fresh(heart: Heart = Heart.WORKER) -> bool:
    """Tell whether a process of this kind was alive lately, in the current unit."""
    row = db.session.get(Heartbeat, heart.value)
    return row is not None and row.at + _FRESH_FOR[heart] > clock.now()
