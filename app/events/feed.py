"""The feed: committed events get positions, are delivered to the targets that asked for their types, and are read.

A unit may commit later than one that began after it. A reader by `number` would skip its events. So a committed event
gets a position afterwards, in units that run one after another, and a reader goes by positions: what becomes visible
later has a higher one. Events of one object keep their order, because the unit that recorded the later one waited for
the other to commit. The unit that numbers events creates their deliveries.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, exists, func, insert, or_, select, update
from sqlalchemy.orm import Session

from app import long_poll
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db.state_machine import StateMachine
from app.db.tables import count, insert_into, table_of
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events.models import Event, EventDelivery, EventSequence, EventTarget
from app.events.outbox import OWNER_IS_TOLD, EventType, matches
from app.events.targets import Audience, Subscriber, TargetStatus

_BATCH_SIZE = 500
_EVENTS = table_of(Event)


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


DELIVERIES = StateMachine(
    EventDelivery.status,
    initial={DeliveryStatus.PENDING},
    permitted={
        DeliveryStatus.PENDING: {DeliveryStatus.DELIVERED, DeliveryStatus.FAILED},
        # Replayed by request.
        DeliveryStatus.DELIVERED: {DeliveryStatus.PENDING},
        DeliveryStatus.FAILED: {DeliveryStatus.PENDING},
    },
)


def create_deliveries(session: Session, events: Sequence[Any]) -> None:
    """Create the deliveries of events that were numbered, in their order."""
    agent_ids = {event.agent_id for event in events if event.agent_id is not None}
    is_enabled = EventTarget.status == TargetStatus.ENABLED.value
    may_see = or_(EventTarget.agent_id.is_(None), EventTarget.agent_id.in_(agent_ids))
    found = select(EventTarget.id, EventTarget.agent_id, EventTarget.audience, EventTarget.types)
    targets = session.execute(found.where(is_enabled, may_see)).all()
    by_agent: dict[str | None, list[Any]] = defaultdict(list)
    for target in targets:
        by_agent[target.agent_id].append(target)
    rows = [
        new_delivery(target.id, event)
        for event in events
        for target in (*by_agent[None], *(by_agent[event.agent_id] if event.agent_id is not None else ()))
        if _wants(target, event)
    ]
    if rows:
        session.execute(insert(EventDelivery), rows)
        make_due(session, {row["target_id"] for row in rows})


def make_due(session: Session, target_ids: Collection[str]) -> None:
    """Note on targets that something is to be delivered to them now.

    All are locked, also those that are due: a thread that ends its turn with one decides under the same lock whether
    anything is left.
    """
    now = clock.now()
    due_at = case((EventTarget.due_at <= now, EventTarget.due_at), else_=now)
    session.execute(update(table_of(EventTarget)).where(EventTarget.id.in_(target_ids)).values(due_at=due_at))


def new_delivery(target_id: str, event: Any) -> dict[str, Any]:
    """Return the values of a new delivery, which is due immediately."""
    now = clock.now()
    return {
        "id": identifiers.new_id(), "target_id": target_id, "event_id": event.id, "object_id": event.object_id,
        "position": event.position, **DELIVERIES.initial(DeliveryStatus.PENDING), "tries": 0, "attempts": [],
        "next_attempt_at": now, "created_at": now,
    }  # fmt: skip


def _wants(target: Any, event: Any) -> bool:
    if event.type == EventType.WEBHOOK_TEST:
        return bool(event.object_id == target.id)
    if event.type == EventType.CONTROLS_CHANGED and target.audience == Audience.OWNER and not event.loosens:
        return False
    is_told = event.type in OWNER_IS_TOLD and target.audience == Audience.OWNER
    return is_told or matches(target.types, event.type)


def has_new() -> ColumnElement[bool]:
    return exists().where(Event.position.is_(None))


def number_new() -> int:
    """Give the next events their positions, and create their deliveries, in one unit; return how many."""
    with unit_of_work() as session:
        # Locks the sequence until the unit ends.
        row = insert_into(session, EventSequence).values(id=1, last_position=0)
        lock = row.on_conflict_do_update(index_elements=["id"], set_={"id": 1})
        last = int(session.execute(lock.returning(EventSequence.last_position)).scalar_one())
        rows = session.execute(_assign(last)).all()
        if rows:
            session.execute(update(EventSequence).values(last_position=last + len(rows)))
            create_deliveries(session, sorted(rows, key=lambda row: row.position))
    return len(rows)


def number_all() -> None:
    """Give all events that are committed now their positions."""
    while number_new() == _BATCH_SIZE:
        pass


def _assign(last: int) -> Any:
    without_position = select(_EVENTS.c.number).where(_EVENTS.c.position.is_(None))
    new = without_position.order_by(_EVENTS.c.number).limit(_BATCH_SIZE).subquery("new")
    place: Any = (bindparam("last", last) + func.row_number().over(order_by=new.c.number)).label("place")
    numbered = select(new.c.number, place).subquery("numbered")
    columns = _EVENTS.c
    numbering = update(_EVENTS).where(columns.number == numbered.c.number).values(position=numbered.c.place)
    # Owners are notified of a change only if it does.
    loosens = columns.data["loosens"].as_boolean().label("loosens")
    return numbering.returning(columns.id, columns.type, columns.agent_id, columns.object_id, columns.position, loosens)


RETENTION = timedelta(days=30)
MAX_EVENTS = 100


def read(subscriber: Subscriber, *, after: int | None, types: Sequence[str], limit: int) -> dict[str, Any]:
    """Return a page of a subscriber's events after a cursor; without one, from the oldest that is kept.

    Events that were committed before the call are seen by it, because it numbers them if no worker has done so.
    """
    with read_only_unit() as session:
        is_behind = session.scalar(select(has_new()))
    if is_behind:
        number_all()
    conditions: list[ColumnElement[bool]] = [Event.position > (after or 0)]
    conditions += [Event.agent_id == subscriber.agent_id] if subscriber.agent_id is not None else []
    conditions += [Event.type.in_(types)] if types else []
    query = select(Event).where(*conditions).order_by(Event.position).limit(limit + 1)
    with read_only_unit() as session:
        # Before the events: the position is a cursor after which nothing that was left out can appear.
        last = session.scalar(select(func.max(EventSequence.last_position))) or 0
        rows = session.scalars(query).all()
    has_more = len(rows) > limit
    rows = rows[:limit]
    reached = rows[-1].position if has_more else max(last, after or 0, *(row.position or 0 for row in rows), 0)
    return {"events": rows, "next_after": reached or 0, "has_more": has_more}


def latest(agent_id: str, page: PageRequest, types: Sequence[str] = ()) -> Page[Event]:
    """Return a page of an agent's events, newest first, of some types or of all."""
    are_meant = [Event.agent_id == agent_id, Event.position.is_not(None), *([Event.type.in_(types)] if types else [])]
    query = select(Event).where(*are_meant).order_by(Event.position.desc()).limit(page.limit).offset(page.offset)
    with read_only_unit() as session:
        return Page(session.scalars(query).all(), count(session, Event, *are_meant), page)


def of_objects(session: Session, object_ids: Sequence[str], *, limit: int) -> Sequence[Event]:
    query = select(Event).where(Event.object_id.in_(object_ids)).order_by(Event.number).limit(limit)
    return session.scalars(query).all()


def wait(
    subscriber: Subscriber, *, after: int | None, types: Sequence[str], limit: int, seconds: Decimal, account_id: str
) -> dict[str, Any]:
    """Return the events after a cursor, waiting for the first one as long as asked and while a thread is free."""

    def following(cursor: int | None) -> dict[str, Any]:
        return read(subscriber, after=cursor, types=types, limit=limit)

    return long_poll.wait(
        following(after), lambda page: following(page["next_after"]), lambda page: page["events"],
        seconds=seconds, account_id=account_id,
    )  # fmt: skip
