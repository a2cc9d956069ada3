"""Liveness of processes by kind. The only writer of `heartbeats`."""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import String, bindparam, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core import clock
from app.db.columns import UtcDateTime
from app.db.prepared import PreparedRead
from app.db.statements import insert_into, table_of
from app.db.unit_of_work import unit_of_work
from app.extensions import Model


class ProcessKind(StrEnum):
    WORKER = "worker"
    SHOPPER = "shopper"


_ALIVE_WITHIN = {ProcessKind.WORKER: timedelta(seconds=60), ProcessKind.SHOPPER: timedelta(seconds=120)}


class Heartbeat(Model):
    """When a kind of process was last alive."""

    __tablename__ = "heartbeats"

    name: Mapped[str] = mapped_column(String(40), primary_key=True)
    at: Mapped[datetime] = mapped_column(UtcDateTime)


_AT = PreparedRead(select(table_of(Heartbeat).c.at).where(table_of(Heartbeat).c.name == bindparam("of_kind")))


def record(kind: ProcessKind = ProcessKind.WORKER) -> None:
    now = clock.now()
    with unit_of_work() as session:
        insert = insert_into(session, Heartbeat).values(name=kind.value, at=now)
        session.execute(insert.on_conflict_do_update(index_elements=["name"], set_={"at": now}))


def ages(session: Session) -> dict[str, int]:
    """Return the seconds since the last heartbeat of each kind of process, if there was any."""
    now = clock.now()
    return {
        name: max(0, int((now - at).total_seconds()))
        for name, at in session.execute(select(Heartbeat.name, Heartbeat.at))
    }


def is_alive(session: Session, kind: ProcessKind = ProcessKind.WORKER) -> bool:
    at = _AT.scalar(session, {"of_kind": kind.value})
    return at is not None and at + _ALIVE_WITHIN[kind] > clock.now()
