"""Deliveries of a webhook with their attempts, tests and replays, and notices of an event."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypeAlias

from sqlalchemy import ColumnElement, Row, and_, case, select
from sqlalchemy.orm import Session

from app.audit_log.trail import AuditAction
from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db.tables import count, in_list
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound
from app.events import feed, outbox, targets
from app.events.feed import DELIVERIES, DeliveryStatus
from app.events.models import Event, EventDelivery, EventTarget
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber

DeliveryRow: TypeAlias = Row[*tuple[Any, ...]]
"""A delivery with the type of its event and its attempts, the newest last."""
OwnerNotice: TypeAlias = Row[*tuple[Any, ...]]
"""The kind of an owner's target, and the state and attempts of a delivery to it."""


def list_of(
    subscriber: Subscriber, target_id: str, page: PageRequest, *, status: str | None = None
) -> Page[DeliveryRow]:
    """Return a page of the deliveries to a webhook, newest first. Raises: NotFound."""
    with read_only_unit() as session:
        conditions = [EventDelivery.target_id == targets.find(session, subscriber, target_id).id]
        conditions += [EventDelivery.status == status] if status is not None else []
        return Page(_read(session, page, conditions), count(session, EventDelivery, *conditions), page)


def last_of(target_id: str) -> DeliveryRow | None:
    with read_only_unit() as session:
        found = _read(session, PageRequest(1, 0), [EventDelivery.target_id == target_id])
    return found[0] if found else None


def send_test(subscriber: Subscriber, target_id: str) -> str:
    """Record a test event for one target, and return its id; it is delivered like any other. Raises: NotFound."""
    with unit_of_work() as session:
        target = targets.find(session, subscriber, target_id)
        data = {"webhook_id": target.id, "message": "This is a test."}
        event_id = identifiers.new_id()
        of_target: dict[str, Any] = {"agent_id": target.agent_id, "object_id": target.id}
        outbox.record(session, EventType.WEBHOOK_TEST, **of_target, data=data, event_id=event_id)
        targets.record_audit(session, subscriber.actor, AuditAction.WEBHOOK_TESTED, target)
    return event_id


def replay(subscriber: Subscriber, target_id: str, *, event_id: str | None, failed_since: datetime | None) -> list[str]:
    """Deliver one event again, or all that failed since a time; return the ids of the deliveries. Raises: NotFound."""
    again: dict[str, Any] = {"tries": 0, "next_attempt_at": clock.now(), "delivered_at": None}
    ended = {DeliveryStatus.DELIVERED, DeliveryStatus.FAILED}
    with unit_of_work() as session:
        target = targets.find(session, subscriber, target_id)
        of_target = EventDelivery.target_id == target.id
        feed.make_due(session, [target.id])
        if event_id is None:
            failed = and_(of_target, EventDelivery.created_at >= (failed_since or clock.now()))
            found = DELIVERIES.move(session, failed, DeliveryStatus.FAILED, DeliveryStatus.PENDING, **again)
        else:
            missing = NotFound("There is no such event; events are kept for 30 days.")
            is_meant = [Event.id == identifiers.require_id(event_id, missing), Event.position.is_not(None)]
            is_meant += [] if subscriber.agent_id is None else [Event.agent_id == subscriber.agent_id]
            event = identifiers.require(session.scalar(select(Event).where(*is_meant)), missing)
            delivery_id = session.scalar(select(EventDelivery.id).where(of_target, EventDelivery.event_id == event.id))
            if delivery_id is None:
                values = feed.new_delivery(target.id, event)
                delivery_id = str(values["id"])
                session.add(EventDelivery(**values))
            else:
                DELIVERIES.move(session, delivery_id, ended, DeliveryStatus.PENDING, **again)
            found = [delivery_id]
        targets.record_audit(session, subscriber.actor, AuditAction.WEBHOOK_REPLAYED, target)
    return found


def _read(session: Session, page: PageRequest, conditions: Sequence[ColumnElement[bool]]) -> Sequence[DeliveryRow]:
    each = EventDelivery
    is_pending = each.status == DeliveryStatus.PENDING.value
    return session.execute(
        select(
            each.id, each.event_id, Event.type, each.object_id, each.status, each.tries, each.attempts,
            case((is_pending, each.next_attempt_at)).label("next_attempt_at"), each.created_at, each.delivered_at,
        )
        .join(Event, Event.id == each.event_id)
        .where(*conditions)
        .order_by(each.position.desc())
        .limit(page.limit)
        .offset(page.offset)
    ).all()  # fmt: skip


def to_owners(
    session: Session, event_type: EventType, object_ids: Sequence[str]
) -> Mapping[str, Sequence[OwnerNotice]]:
    """Return the deliveries of an event of some objects to their owners; those of agents and operators do not count."""
    each, to_owner = EventDelivery, EventTarget.audience == Audience.OWNER.value
    rows = session.execute(
        select(Event.object_id, EventTarget.kind, each.status, each.tries, each.attempts, each.delivered_at)
        .join(each, each.event_id == Event.id)
        .join(EventTarget, EventTarget.id == each.target_id)
        .where(in_list(session, Event.object_id, object_ids), Event.type == event_type.value, to_owner)
        .order_by(each.created_at, each.id)
    )
    found: dict[str, list[OwnerNotice]] = defaultdict(list)
    for row in rows:
        found[row.object_id].append(row)
    return found


def count_undelivered(session: Session, agent_id: str, since: datetime) -> int:
    """Return how many deliveries of notices to an agent's owner were tried since a time, all without success."""
    of_owner = EventTarget.agent_id == agent_id, EventTarget.audience == Audience.OWNER.value
    is_undelivered = EventDelivery.delivered_at.is_(None), EventDelivery.tries > 0, EventDelivery.created_at >= since
    is_to_owner = EventDelivery.target_id.in_(select(EventTarget.id).where(*of_owner))
    return count(session, EventDelivery, is_to_owner, *is_undelivered)
