"""Deliveries: claim a target, send what is due to it, record the results. The only writer of `event_deliveries`.

A target belongs to one thread at a time, by a lease. Of the deliveries of one object to one target, only the first that
is not finished is sent, so that they arrive in order. An attempt may arrive twice if the process dies before the result
is recorded; the id is the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog
from sqlalchemy import ColumnElement, and_, exists, select, update
from sqlalchemy.orm import Session, aliased

from app.core import clock, identifiers
from app.core.pagination import Page, PageRequest
from app.db.statements import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound
from app.events import outbox, sending, targets
from app.events.fan_out import DELIVERIES, DeliveryStatus, new_delivery
from app.events.models import Event, EventDelivery, EventTarget
from app.events.sending import Attempt
from app.events.targets import TARGETS, Subscriber, TargetStatus
from app.events.types import EventType

_log = structlog.get_logger(__name__)
_SECOND, _MINUTE, _HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DELAYS = (
    5 * _SECOND, 30 * _SECOND, 2 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR,
    16 * _HOUR, 24 * _HOUR, 24 * _HOUR,
)  # fmt: skip
"""How long after each failed attempt the next one follows; then the delivery has failed."""
_JITTER_PERCENT = 20
DISABLED_AFTER = timedelta(days=3)
_MAX_PAUSE = timedelta(minutes=5)
_LEASE = timedelta(seconds=90)
_BATCH_SIZE = 50
_BATCH_SECONDS = 2
_TURN_SECONDS = 10
_KEPT_ATTEMPTS = 20
_random = random.SystemRandom()


@dataclass(frozen=True, slots=True)
class DeliveryView:
    """A delivery with its event and its attempts, the newest last."""

    id: str
    event_id: str
    type: str
    object_id: str
    status: str
    tries: int
    attempts: Sequence[dict[str, object]]
    next_attempt_at: datetime | None
    created_at: datetime
    delivered_at: datetime | None


def has_due(now: datetime) -> ColumnElement[bool]:
    """Return the condition that something can be sent to a target that no thread has."""
    return exists().where(_is_free(now), _has_first_due(now))


def count_due() -> int:
    """Return how many targets something can be sent to now."""
    now = clock.now()
    with read_only_unit() as session:
        return count(session, EventTarget, _is_free(now), _has_first_due(now))


def deliver_next() -> bool:
    """Claim a target that is due and deliver to it for some seconds; return False if there was none."""
    claimed = _claim()
    if claimed is None:
        return False
    target, holder = claimed
    try:
        deadline = time.monotonic() + _TURN_SECONDS
        while _deliver_batch(target) and time.monotonic() < deadline:
            pass
    finally:
        _release(target.id, holder)
    return True


def list_of(
    subscriber: Subscriber, target_id: str, page: PageRequest, *, status: str | None = None
) -> Page[DeliveryView]:
    """Return a page of the deliveries to a webhook, newest first. Raises: NotFound."""
    with read_only_unit() as session:
        target = targets.find(session, subscriber, target_id)
        conditions = [EventDelivery.target_id == target.id]
        if status is not None:
            conditions.append(EventDelivery.status == status)
        rows = session.execute(
            select(EventDelivery, Event.type)
            .join(Event, Event.id == EventDelivery.event_id)
            .where(*conditions)
            .order_by(EventDelivery.position.desc())
            .limit(page.limit)
            .offset(page.offset)
        ).all()
        found = [_view(row, event_type) for row, event_type in rows]
        return Page(found, count(session, EventDelivery, *conditions), page)


def send_test(subscriber: Subscriber, target_id: str) -> str:
    """Record a test event for one webhook, and return its id; it is delivered like any other. Raises: NotFound."""
    with unit_of_work() as session:
        target = targets.find(session, subscriber, target_id)
        data = {"webhook_id": target.id, "message": "This is a test."}
        event_id = identifiers.new_id()
        outbox.record(
            session, EventType.WEBHOOK_TEST, agent_id=target.agent_id, object_id=target.id, data=data, event_id=event_id
        )  # fmt: skip
    return event_id


def replay(
    subscriber: Subscriber, target_id: str, *, event_id: str | None, failed_since: datetime | None
) -> list[str]:
    """Deliver one event again, or all that failed since a time; return the ids of the deliveries. Raises: NotFound."""
    again: dict[str, Any] = {"tries": 0, "next_attempt_at": clock.now(), "delivered_at": None}
    ended = {DeliveryStatus.DELIVERED, DeliveryStatus.FAILED}
    with unit_of_work() as session:
        target = targets.find(session, subscriber, target_id)
        of_target = EventDelivery.target_id == target.id
        if event_id is None:
            since = EventDelivery.created_at >= (failed_since or clock.now())
            return DELIVERIES.move(
                session, and_(of_target, since), DeliveryStatus.FAILED, DeliveryStatus.PENDING, **again
            )
        event = _event_for(session, subscriber, event_id)
        delivery_id = session.scalar(
            select(EventDelivery.id).where(of_target, EventDelivery.event_id == event.id)
        )
        if delivery_id is None:
            values = new_delivery(target.id, event)
            session.add(EventDelivery(**values))
            return [str(values["id"])]
        DELIVERIES.move(session, delivery_id, ended, DeliveryStatus.PENDING, **again)
        return [delivery_id]


def notices(session: Session, event_ids: Sequence[str]) -> list[DeliveryView]:
    """Return the deliveries of events to all targets, to find out whether anybody was notified."""
    rows = session.execute(
        select(EventDelivery, Event.type)
        .join(Event, Event.id == EventDelivery.event_id)
        .where(EventDelivery.event_id.in_(event_ids))
        .order_by(EventDelivery.created_at)
    ).all()
    return [_view(row, event_type) for row, event_type in rows]


def delay_after(tries: int, retry_after: timedelta | None) -> timedelta | None:
    """Return the time until the next attempt after so many failed ones, None if there is none."""
    if tries > len(DELAYS):
        return None
    delay = DELAYS[tries - 1] * (100 + _random.randint(0, _JITTER_PERCENT)) // 100
    return delay if retry_after is None else max(delay, retry_after)


def _claim() -> tuple[EventTarget, str] | None:
    now, holder = clock.now(), identifiers.new_id()
    with read_only_unit() as session:
        query = (
            select(EventTarget.id).where(_is_free(now), _has_first_due(now)).order_by(EventTarget.lease_until)
        )
        candidates = session.scalars(query.limit(20)).all()
    for target_id in candidates:
        with unit_of_work() as session:
            taken = session.execute(
                update(EventTarget)
                .where(EventTarget.id == target_id, _is_free(now))
                .values(holder=holder, lease_until=now + _LEASE)
                .execution_options(synchronize_session=False)
            )
            if not taken.rowcount:  # type: ignore[attr-defined]
                continue
            target = session.get(EventTarget, target_id)
            if target is not None:
                session.expunge(target)
                return target, holder
    return None


def _release(target_id: str, holder: str) -> None:
    with unit_of_work() as session:
        session.execute(
            update(EventTarget)
            .where(EventTarget.id == target_id, EventTarget.holder == holder)
            .values(holder=None, lease_until=clock.now())
        )


def _deliver_batch(target: EventTarget) -> bool:
    """Send what is due to a target, for about two seconds, and record it; return whether to continue."""
    now = clock.now()
    with read_only_unit() as session:
        rows = session.execute(
            select(EventDelivery.id, EventDelivery.tries, EventDelivery.attempts, Event)
            .join(Event, Event.id == EventDelivery.event_id)
            .where(
                EventDelivery.target_id == target.id,
                EventDelivery.status == DeliveryStatus.PENDING.value,
                EventDelivery.next_attempt_at <= now,
                _is_first(EventDelivery),
            )
            .order_by(EventDelivery.position)
            .limit(_BATCH_SIZE)
        ).all()
    deadline = time.monotonic() + _BATCH_SECONDS
    results = []
    for delivery_id, tries, attempts, event in rows:
        attempt = sending.post(target.url, event, targets.secrets_of(target))
        results.append((delivery_id, tries + 1, attempts, attempt))
        if attempt.is_unanswered or attempt.is_gone or attempt.retry_after or time.monotonic() > deadline:
            break
    if not results:
        return False
    with unit_of_work() as session:
        for delivery_id, tries, attempts, attempt in results:
            _record(session, delivery_id, tries, attempts, attempt)
        return _record_on_target(session, target.id, [attempt for *_, attempt in results])


def _record(
    session: Session, delivery_id: str, tries: int, attempts: list[dict[str, object]], attempt: Attempt
) -> None:
    history = [*attempts, attempt.as_json()][-_KEPT_ATTEMPTS:]
    pending = DeliveryStatus.PENDING
    changes: dict[str, Any] = {"tries": tries, "attempts": history}
    if attempt.is_delivered:
        delivered_at = clock.now()
        DELIVERIES.move(
            session, delivery_id, pending, DeliveryStatus.DELIVERED, delivered_at=delivered_at, **changes
        )
        return
    delay = delay_after(tries, attempt.retry_after)
    if delay is None:
        DELIVERIES.move(session, delivery_id, pending, DeliveryStatus.FAILED, **changes)
        return
    session.execute(
        update(EventDelivery)
        .where(EventDelivery.id == delivery_id, EventDelivery.status == pending.value)
        .values(next_attempt_at=clock.now() + delay, **changes)
        .execution_options(synchronize_session=False)
    )


def _record_on_target(session: Session, target_id: str, attempts: Sequence[Attempt]) -> bool:
    """Record on a target whether it works, pause or disable it; return whether to continue."""
    target = session.get(EventTarget, target_id)
    if target is None:
        return False
    now, last = clock.now(), attempts[-1]
    if any(attempt.is_delivered for attempt in attempts):
        target.failing_since, target.unanswered = None, 0
    if last.is_delivered:
        return True
    target.failing_since = target.failing_since or now
    target.unanswered = target.unanswered + 1 if last.is_unanswered else 0
    if last.is_unanswered:
        target.paused_until = now + min(DELAYS[0] * 2 ** min(target.unanswered - 1, 10), _MAX_PAUSE)
    elif last.retry_after is not None:
        target.paused_until = now + last.retry_after
    session.flush()
    if last.is_gone:
        _disable(session, target, "the target answered 410 Gone")
        return False
    if now - target.failing_since >= DISABLED_AFTER:
        _disable(session, target, "no delivery succeeded for three days")
        return False
    return target.paused_until <= now


def _disable(session: Session, target: EventTarget, reason: str) -> None:
    if TARGETS.move(session, target.id, TargetStatus.ENABLED, TargetStatus.DISABLED, reason=reason):
        data = {"webhook_id": target.id, "url": target.url, "reason": reason}
        outbox.record(
            session, EventType.WEBHOOK_DISABLED, agent_id=target.agent_id, object_id=target.id, data=data
        )


def _is_free(now: datetime) -> ColumnElement[bool]:
    return and_(
        EventTarget.status == TargetStatus.ENABLED.value,
        EventTarget.lease_until <= now,
        EventTarget.paused_until <= now,
    )


def _has_first_due(now: datetime) -> ColumnElement[bool]:
    return exists().where(
        EventDelivery.target_id == EventTarget.id,
        EventDelivery.status == DeliveryStatus.PENDING.value,
        EventDelivery.next_attempt_at <= now,
        _is_first(EventDelivery),
    )


def _is_first(delivery: type[EventDelivery]) -> ColumnElement[bool]:
    """Return the condition that no earlier event of the object waits for delivery to the target."""
    earlier = aliased(EventDelivery)
    return ~exists().where(
        earlier.target_id == delivery.target_id,
        earlier.object_id == delivery.object_id,
        earlier.status == DeliveryStatus.PENDING.value,
        earlier.position < delivery.position,
    )


def _event_for(session: Session, subscriber: Subscriber, event_id: str) -> Event:
    missing = NotFound("There is no such event; events are kept for 30 days.")
    canonical = identifiers.require_id(event_id, missing)
    event = session.scalars(select(Event).where(Event.id == canonical)).one_or_none()
    is_visible = event is not None and (subscriber.agent_id is None or event.agent_id == subscriber.agent_id)
    if event is None or not is_visible or event.position is None:
        raise missing
    return event


def _view(row: EventDelivery, event_type: str) -> DeliveryView:
    is_pending = row.status == DeliveryStatus.PENDING.value
    return DeliveryView(
        id=row.id, event_id=row.event_id, type=event_type, object_id=row.object_id, status=row.status, tries=row.tries,
        attempts=row.attempts, next_attempt_at=row.next_attempt_at if is_pending else None, created_at=row.created_at,
        delivered_at=row.delivered_at,
    )  # fmt: skip
