"""Notices: whether an event has reached the owner of its agent, and each attempt to deliver it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.db.statements import in_list
from app.events.models import Event, EventDelivery, EventTarget
from app.events.outbox import EventType
from app.events.targets import Audience


@dataclass(frozen=True, slots=True)
class OwnerNotice:
    kind: str
    status: str
    tries: int
    attempts: Sequence[Mapping[str, object]]
    delivered_at: datetime | None


def to_owners(
    session: Session, event_type: EventType, object_ids: Sequence[str]
) -> Mapping[str, Sequence[OwnerNotice]]:
    """Return the deliveries of an event of some objects to their owners; those of agents and operators do not count."""
    rows = session.execute(
        select(
            *(Event.object_id, EventTarget.kind, EventDelivery.status, EventDelivery.tries),
            *(EventDelivery.attempts, EventDelivery.delivered_at),
        )
        .join(EventDelivery, EventDelivery.event_id == Event.id)
        .join(EventTarget, EventTarget.id == EventDelivery.target_id)
        .where(
            in_list(session, Event.object_id, object_ids),
            Event.type == event_type.value,
            EventTarget.audience == Audience.OWNER.value,
        )
        .order_by(EventDelivery.created_at, EventDelivery.id)
    )
    found: dict[str, list[OwnerNotice]] = defaultdict(list)
    for object_id, *notice in rows:
        found[object_id].append(OwnerNotice(*notice))
    return found


def count_undelivered(session: Session, agent_id: str, since: datetime) -> int:
    """Return how many deliveries of notices to an agent's owner were tried since a time, all without success."""
    return (
        session.scalar(
            select(func.count())
            .select_from(EventDelivery)
            .join(EventTarget, EventTarget.id == EventDelivery.target_id)
            .where(
                EventTarget.agent_id == agent_id,
                EventTarget.audience == Audience.OWNER.value,
                EventDelivery.created_at >= since,
                EventDelivery.delivered_at.is_(None),
                EventDelivery.tries > 0,
            )
        )
        or 0
    )
