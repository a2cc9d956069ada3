"""The feed: events in the order of their positions, from a cursor on."""

from collections.abc import Sequence
from datetime import timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from app import long_poll
from app.core.pagination import Page, PageRequest
from app.db.tables import count
from app.db.unit_of_work import read_only_unit
from app.events import fan_out
from app.events.models import Event, EventSequence
from app.events.targets import Subscriber

RETENTION = timedelta(days=30)
MAX_EVENTS = 100


def read(subscriber: Subscriber, *, after: int | None, types: Sequence[str], limit: int) -> dict[str, Any]:
    """Return a page of a subscriber's events after a cursor; without one, from the oldest that is kept.

    Events that were committed before the call are seen by it, because it numbers them if no worker has done so.
    """
    with read_only_unit() as session:
        has_new = session.scalar(select(fan_out.has_new()))
    if has_new:
        fan_out.number_all()
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
