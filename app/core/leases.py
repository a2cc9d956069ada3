"""Leases in the database: periodic work is done by one process at a time, whatever the queue does.

A lease is an optimisation, never a proof: the work under it must be right even when two do it at once.
Alone writes `work_leases`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from sqlalchemy import String, delete, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from app.core import clock
from app.core.columns import ID, UtcDateTime
from app.core.identifiers import new_id
from app.core.unit_of_work import unit_of_work
from app.extensions import Model


class WorkLease(Model):
    """Who does a periodic piece of work, and until when nobody else shall."""

    __tablename__ = "work_leases"

    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    holder: Mapped[str] = mapped_column(ID)
    until: Mapped[datetime] = mapped_column(UtcDateTime)


@contextmanager
def lease(name: str, *, duration: timedelta) -> Iterator[bool]:
    """Yield whether the lease was free; give it back at the end. A holder that dies loses it by time."""
    holder = new_id()
    held = _take(name, holder=holder, until=clock.now() + duration)
    try:
        yield held
    finally:
        if held:
            with unit_of_work() as session:
                session.execute(delete(WorkLease).where(WorkLease.name == name, WorkLease.holder == holder))


@contextmanager
def once_in(period: timedelta, name: str, *, duration: timedelta) -> Iterator[bool]:
    """Yield whether work is due that is done once in a period, by one process.

    Work that fails, or whose process dies, is due again when the `duration` is over.
    """
    holder, started = new_id(), clock.now()
    due = _take(name, holder=holder, until=started + duration)
    yield due
    if due:
        with unit_of_work() as session:
            session.execute(
                update(WorkLease)
                .where(WorkLease.name == name, WorkLease.holder == holder)
                .values(until=started + period)
            )


def _take(name: str, *, holder: str, until: datetime) -> bool:
    with unit_of_work() as session:
        taken = session.execute(
            update(WorkLease)
            .where(WorkLease.name == name, WorkLease.until < clock.now())
            .values(holder=holder, until=until)
        )
        if taken.rowcount == 1:  # type: ignore[attr-defined]
            return True
    try:
        with unit_of_work() as session:
            session.add(WorkLease(name=name, holder=holder, until=until))
    except IntegrityError:
        return False
    return True
