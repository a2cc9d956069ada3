"""Positions: the order in which events are read, which is that of their commits as far as a reader can see.

A unit may commit later than one that began after it. A reader by `number` would skip its events. So a
committed event gets its position afterwards, in units that run one after another, and a reader goes by positions: what
becomes visible later has a higher one. Events of one object keep their order, because the unit that recorded the later
one waited for the other to commit.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, bindparam, exists, func, select, update
from sqlalchemy.orm import Session

from app.db.statements import insert_into, table_of
from app.db.unit_of_work import unit_of_work
from app.events import fan_out
from app.events.models import Event, EventSequence

_BATCH_SIZE = 500
_EVENTS = table_of(Event)


def has_new() -> ColumnElement[bool]:
    """Return the condition that events have no position yet."""
    return exists().where(Event.position.is_(None))


def number_new() -> int:
    """Give the next events their positions, and create their deliveries, in one unit; return how many."""
    with unit_of_work() as session:
        last = _lock(session)
        rows = session.execute(_assign(last)).all()
        if rows:
            session.execute(update(EventSequence).values(last_position=last + len(rows)))
            fan_out.create_deliveries(session, sorted(rows, key=lambda row: row.position))
    return len(rows)


def number_all() -> None:
    """Give all events that are committed now their positions."""
    while number_new() == _BATCH_SIZE:
        pass


def _lock(session: Session) -> int:
    """Lock the sequence until the unit ends, and return the last position."""
    row = insert_into(session, EventSequence).values(id=1, last_position=0)
    lock = row.on_conflict_do_update(index_elements=["id"], set_={"id": 1})
    return int(session.execute(lock.returning(EventSequence.last_position)).scalar_one())


def _assign(last: int) -> Any:
    new = (
        select(_EVENTS.c.number)
        .where(_EVENTS.c.position.is_(None))
        .order_by(_EVENTS.c.number)
        .limit(_BATCH_SIZE)
        .subquery("new")
    )
    place: Any = (bindparam("last", last) + func.row_number().over(order_by=new.c.number)).label("place")
    numbered = select(new.c.number, place).subquery("numbered")
    columns = _EVENTS.c
    return (
        update(_EVENTS)
        .where(columns.number == numbered.c.number)
        .values(position=numbered.c.place)
        .returning(
            *(columns.id, columns.type, columns.agent_id, columns.object_id, columns.position),
            # Owners are notified of a change only if it does.
            columns.data["loosens"].as_boolean().label("loosens"),
        )
    )
