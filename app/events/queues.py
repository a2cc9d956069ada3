"""Queues: the order in which targets are served. The only writer of `event_queues`.

All webhooks of an agent are one queue, as are those of its owner, all targets of one mailbox, and each webhook of an
operator. The queue that was served longest ago is next, whatever waits in it; at most two threads serve it, and of an
agent or owner for `BUDGET` an hour. So a subscriber with slow targets and a backlog delays only itself.
"""

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import IntEnum

from sqlalchemy import ColumnElement, and_, case, exists, or_, select, update
from sqlalchemy.orm import Session

from app.core import clock
from app.db.tables import insert_into, table_of
from app.events.models import EventQueue, EventTarget

BUDGET = timedelta(minutes=10)
"""How long an agent or owner may keep threads busy within an hour."""
LEASE = timedelta(seconds=90)
_HOUR = timedelta(hours=1)


class QueueRank(IntEnum):
    """What threads are reserved for: those of a rank serve it and the higher ones."""

    AGENT = 0
    OWNER = 1
    """URLs and browsers that an owner entered."""
    SERVICE = 2
    """E-mail, which goes to the operator's own server, and webhooks of operators: one thread for each."""


@dataclass(frozen=True, slots=True)
class QueueTurn:
    """A queue that a thread serves until `lease_until`."""

    name: str
    lease_until: datetime


def join(session: Session, target: EventTarget) -> None:
    """Put a target into its queue, which is created if it is the first. A new queue is served after all others."""
    (target.queue, rank), now = _queue_of(target), clock.now()
    times = dict.fromkeys(("served_at", "first_until", "second_until", "used_until"), now)
    new = insert_into(session, EventQueue).values(name=target.queue, rank=rank, **times)
    # Locks and renews an existing one: the sweep, which does not see the target yet, would delete it if it was idle.
    is_idle = EventQueue.used_until < now
    session.execute(new.on_conflict_do_update(index_elements=["name"], set_={"used_until": now}, where=is_idle))


def claim(session: Session, is_due: ColumnElement[bool], now: datetime, *, rank: QueueRank) -> QueueTurn | None:
    """Claim the queue of at least a rank that was served longest ago and has a target that is due."""
    until = now + LEASE
    has_due = EventQueue.name.in_(select(EventTarget.queue).where(is_due))
    next_one = select(EventQueue.name).where(_is_free(now, rank), has_due)
    # What another thread is claiming is left to it.
    next_one = next_one.order_by(EventQueue.served_at, EventQueue.name).limit(1).with_for_update(skip_locked=True)
    is_first = EventQueue.first_until <= now
    is_second = or_(~is_first, EventQueue.rank == QueueRank.SERVICE)
    is_next = EventQueue.name == next_one.scalar_subquery(), _is_free(now, rank)
    claimed = update(table_of(EventQueue)).where(*is_next).values(
        served_at=now, first_until=case((is_first, until), else_=EventQueue.first_until),
        second_until=case((is_second, until), else_=EventQueue.second_until),
    )  # fmt: skip
    name = session.scalar(claimed.returning(EventQueue.name))
    return None if name is None else QueueTurn(name, until)


def release(session: Session, turn: QueueTurn) -> None:
    now = clock.now()
    columns = (EventQueue.first_until, EventQueue.second_until)
    ended = {each: case((each == turn.lease_until, now), else_=each) for each in columns}
    session.execute(update(table_of(EventQueue)).where(EventQueue.name == turn.name).values(ended))


def add_use(session: Session, turn: QueueTurn, busy: timedelta) -> bool:
    """Count the time that a thread was busy with a queue's targets; return whether more of it is left."""
    queue = session.scalars(select(EventQueue).filter_by(name=turn.name).with_for_update()).one_or_none()
    if queue is None or queue.rank == QueueRank.SERVICE:
        return True
    now = clock.now()
    # Each second of use takes six to be forgotten, so that ten minutes an hour can be used.
    queue.used_until = max(queue.used_until, now) + busy * (_HOUR // BUDGET)
    session.flush()
    return queue.used_until <= now + _HOUR


def is_servable(is_due: ColumnElement[bool], now: datetime, rank: QueueRank) -> ColumnElement[bool]:
    """Return the condition that a target is due in a queue of at least a rank that another thread may serve."""
    return and_(is_due, exists().where(EventQueue.name == EventTarget.queue, _is_free(now, rank)))


def _queue_of(target: EventTarget) -> tuple[str, QueueRank]:
    if target.agent_id is None:
        return f"target:{target.id}", QueueRank.SERVICE
    if target.url.startswith("mailto:"):
        mailbox = mailbox_of(target.url.removeprefix("mailto:"))
        return f"mail:{hashlib.sha256(mailbox.encode()).hexdigest()}", QueueRank.SERVICE
    rank = QueueRank.AGENT if target.audience == "agent" else QueueRank.OWNER
    return f"{target.audience}:{target.agent_id}", rank


def _is_free(now: datetime, rank: QueueRank) -> ColumnElement[bool]:
    """Return the condition that a thread may begin to serve a queue."""
    first, second = EventQueue.first_until <= now, EventQueue.second_until <= now
    return and_(
        EventQueue.rank >= rank,
        case((EventQueue.rank == QueueRank.SERVICE, and_(first, second)), else_=or_(first, second)),
        EventQueue.used_until <= now + _HOUR,
    )


def mailbox_of(address: str) -> str:
    """Return an address without case and sub-address (`+tag`), and without dots where they mean nothing.

    Two addresses with one result may still be two mailboxes: it is for limits, never for delivery.
    """
    local, _, domain = address.casefold().rpartition("@")
    domain = domain.rstrip(".")
    local = local.partition("+")[0] or local
    if domain in ("gmail.com", "googlemail.com"):
        local, domain = local.replace(".", ""), "gmail.com"
    return f"{local}@{domain}"
