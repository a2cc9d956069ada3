"""Leases in the database: one process at a time does periodic work, whatever the queue does. Liveness of processes.

A lease is an optimisation, not a guarantee: the work must be correct even when two processes do it concurrently.
The only writer of `work_leases` and `heartbeats`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from enum import StrEnum

from sqlalchemy import ColumnElement, String, bindparam, exists, select
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.core import clock
from app.core.identifiers import new_id
from app.db.prepared import PreparedRead
from app.db.tables import ID, UtcDateTime, delete_rows, insert_into, table_of, update_rows
from app.db.unit_of_work import unit_of_work
from app.extensions import Model


class WorkLease(Model):
    """The process that does periodic work, and until when it has the right to."""

    __tablename__ = "work_leases"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    holder: Mapped[str] = mapped_column(ID)
    until: Mapped[datetime] = mapped_column(UtcDateTime)


@contextmanager
def lease(name: str, *, duration: timedelta) -> Iterator[bool]:
    """Yield whether the lease was free; release it at the end. The lease of a dead process expires."""
    holder = new_id()
    acquired = _acquire(name, holder=holder, until=clock.now() + duration)
    try:
        yield acquired
    finally:
        if acquired:
            with unit_of_work() as session:
                delete_rows(session, WorkLease, WorkLease.name == name, WorkLease.holder == holder)


@contextmanager
def once_per_period(period: timedelta, name: str, *, duration: timedelta) -> Iterator[bool]:
    """Yield whether work is due that one process does per period; what failed is due again after `duration`."""
    holder, started = new_id(), clock.now()
    is_due = _acquire(name, holder=holder, until=started + duration)
    yield is_due
    if is_due:
        with unit_of_work() as session:
            is_own = WorkLease.name == name, WorkLease.holder == holder
            update_rows(session, WorkLease, *is_own, until=started + period)


def lock(session: Session, name: str) -> None:
    """Lock a name until the unit ends: units that lock it follow one another."""
    values = {"holder": new_id(), "until": clock.now()}
    insert = insert_into(session, WorkLease).values(name=name, **values)
    session.execute(insert.on_conflict_do_update(index_elements=["name"], set_=values))


def is_free(name: str, now: datetime) -> ColumnElement[bool]:
    return ~exists().where(WorkLease.name == name, WorkLease.until >= now)


def _acquire(name: str, *, holder: str, until: datetime) -> bool:
    values = {"holder": holder, "until": until}
    with unit_of_work() as session:
        insert = insert_into(session, WorkLease).values(name=name, **values)
        acquire = insert.on_conflict_do_update(
            index_elements=["name"], set_=values, where=WorkLease.until < clock.now()
        )
        return session.execute(acquire.returning(WorkLease.name)).one_or_none() is not None


class ProcessKind(StrEnum):
    WORKER = "worker"
    SHOPPER = "shopper"


_ALIVE_WITHIN = {ProcessKind.WORKER: timedelta(seconds=60), ProcessKind.SHOPPER: timedelta(seconds=120)}


class Heartbeat(Model):
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
