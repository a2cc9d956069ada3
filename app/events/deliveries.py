"""Deliveries: claim a target, send what is due to it, record the results. The only writer of `event_deliveries`.

A target belongs to one thread at a time, by a lease, and is chosen by its queue (`app.events.queues`). Of the
deliveries of one object to one target, only the first that is not finished is sent, so that they arrive in order; a
mailbox or browser gets them in one message. An attempt may arrive twice if the process dies before the result is
recorded; the id is the same.

A mailbox or browser gets few messages: the first notice is sent immediately; after three within ten minutes, what
happens waits for the next one.
"""

import random
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, func, select, update
from sqlalchemy.orm import Session

from app.core import clock, identifiers
from app.db.tables import count, update_rows
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import channels, outbox, queues
from app.events.channels import Attempt
from app.events.feed import DELIVERIES, DeliveryStatus
from app.events.models import Event, EventDelivery, EventTarget
from app.events.outbox import EventType
from app.events.queues import QueueRank, QueueTurn
from app.events.targets import TARGETS, Audience, TargetKind, TargetStatus

MAX_MESSAGES = 3
WINDOW = timedelta(minutes=10)
_SECOND, _MINUTE, _HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
DELAYS = (
    5 * _SECOND, 30 * _SECOND, 2 * _MINUTE, 10 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR, 4 * _HOUR, 8 * _HOUR,
    16 * _HOUR, 24 * _HOUR, 24 * _HOUR,
)  # fmt: skip
"""How long after each failed attempt the next one follows; then the delivery has failed."""
DISABLED_AFTER = timedelta(days=3)
_BATCH_SIZE = 50
_BATCH_SECONDS = 2
_random = random.SystemRandom()


def _is_digested(target: EventTarget) -> bool:
    """Return whether a target is one that a person reads."""
    return target.kind != TargetKind.WEBHOOK.value


def has_due(now: datetime) -> ColumnElement[bool]:
    """Return the condition that something can be sent to a target that no thread has."""
    return exists().where(queues.is_servable(_is_due(now), now, QueueRank.AGENT))


def count_due(rank: QueueRank = QueueRank.AGENT) -> int:
    """Return how many targets in queues of at least a rank something can be sent to now."""
    now = clock.now()
    with read_only_unit() as session:
        return count(session, EventTarget, queues.is_servable(_is_due(now), now, rank))


def deliver_next(rank: QueueRank = QueueRank.AGENT) -> bool:
    """Claim a target that is due, in a queue of at least a rank, and deliver to it for some seconds.

    Returns False if nothing was due.
    """
    claimed = _claim(rank)
    if claimed is None:
        return False
    turn, target = claimed
    if target is None:
        # Another thread claimed the queue's last one.
        return True
    try:
        deadline = time.monotonic() + 10
        while _deliver_batch(target, turn) and time.monotonic() < deadline:
            pass
    finally:
        _release(target, turn)
    return True


def _claim(rank: QueueRank) -> tuple[QueueTurn, EventTarget | None] | None:
    """Claim the queue that is next, and the target in it that was released longest ago."""
    now = clock.now()
    with unit_of_work() as session:
        turn = queues.claim(session, _is_due(now), now, rank=rank)
        if turn is None:
            return None
        in_queue = select(EventTarget.id).where(EventTarget.queue == turn.name, _is_due(now))
        next_one = in_queue.order_by(EventTarget.lease_until, EventTarget.due_at).limit(1)
        is_next = EventTarget.id == next_one.scalar_subquery(), _is_due(now)
        taken = {"holder": identifiers.new_id(), "lease_until": turn.lease_until}
        claimed = update(EventTarget).where(*is_next).values(taken).returning(EventTarget)
        target = session.scalars(claimed, execution_options={"synchronize_session": False}).one_or_none()
        if target is None:
            queues.release(session, turn)
        else:
            session.expunge(target)
    return turn, target


def _release(target: EventTarget, turn: QueueTurn) -> None:
    """End the leases, and set when the target is due again.

    Deliveries are added under the lock of their target, so that none is overlooked.
    """
    mine = (EventTarget.id == target.id, EventTarget.holder == target.holder)
    with unit_of_work() as session:
        queues.release(session, turn)
        row = session.scalars(select(EventTarget).where(*mine).with_for_update()).one_or_none()
        if row is not None:
            due_at = session.scalar(select(func.min(EventDelivery.next_attempt_at)).where(*_waits_for(row.id)))
            row.holder, row.lease_until, row.due_at = None, clock.now(), due_at


def _waits_for(target_id: str) -> tuple[ColumnElement[bool], ...]:
    return EventDelivery.target_id == target_id, EventDelivery.status == DeliveryStatus.PENDING.value


def _deliver_batch(target: EventTarget, turn: QueueTurn) -> bool:
    """Send what is due to a target, for about two seconds, and record it; return whether to continue."""
    started = time.monotonic()
    is_digested = _is_digested(target)
    if is_digested and _pause_until_message(target):
        return False
    ready, blocked = _find_due(target.id, is_digested=is_digested)
    with read_only_unit() as session:
        found = select(EventDelivery.id, EventDelivery.tries, EventDelivery.attempts, Event)
        found = found.join(Event, Event.id == EventDelivery.event_id).where(EventDelivery.id.in_(ready))
        rows = session.execute(found.order_by(EventDelivery.position)).all()
    results = []
    for message in [rows] if is_digested and rows else [[row] for row in rows]:
        attempt = channels.send(target, [row.Event for row in message])
        results += [(row.id, row.Event.object_id, row.tries + 1, row.attempts, attempt) for row in message]
        is_refused = attempt.holds_up or attempt.is_gone or attempt.retry_after
        if is_refused or time.monotonic() - started > _BATCH_SECONDS:
            break
    if not results and not blocked:
        return False
    with unit_of_work() as session:
        may_continue = queues.add_use(session, turn, timedelta(seconds=time.monotonic() - started))
        for delivery_id, until in blocked.items():
            _postpone(session, EventDelivery.id == delivery_id, until)
        for delivery_id, object_id, tries, attempts, attempt in results:
            next_attempt_at = _record(session, delivery_id, tries, attempts, attempt)
            if next_attempt_at is not None:
                of_object = and_(*_waits_for(target.id), EventDelivery.object_id == object_id)
                _postpone(session, of_object, next_attempt_at)
        made = [attempt for *_, attempt in results]
        return (not results or _record_on_target(session, target.id, made)) and may_continue


def _pause_until_message(target: EventTarget) -> bool:
    """Pause a browser, or a mailbox of any agents and spellings, that has had its messages; return whether it has."""
    is_mailbox, is_target = target.kind == TargetKind.EMAIL.value, EventTarget.id == target.id
    are_same = EventTarget.queue == target.queue if is_mailbox else is_target
    with unit_of_work() as session:
        sent = sorted(at for times in session.scalars(select(EventTarget.sent).where(are_same)) for at in times or ())
        if len(sent) < MAX_MESSAGES:
            return False
        until = datetime.fromisoformat(sent[-MAX_MESSAGES]) + WINDOW
        if until > clock.now():
            update_rows(session, EventTarget, is_target, paused_until=until)
            return True
    return False


def _find_due(target_id: str, *, is_digested: bool) -> tuple[list[str], dict[str, datetime]]:
    """Return what can be sent, and what is due but has to wait, and until when.

    What can be sent is the first event of each object; in one message, all of them.
    """
    now = clock.now()
    columns = EventDelivery.id, EventDelivery.object_id, EventDelivery.position, EventDelivery.next_attempt_at
    waiting = select(*columns).where(*_waits_for(target_id)).order_by(EventDelivery.position)
    with read_only_unit() as session:
        due = session.execute(waiting.where(EventDelivery.next_attempt_at <= now).limit(200)).all()
        objects = {row.object_id for row in due}
        is_later = EventDelivery.object_id.in_(objects), EventDelivery.next_attempt_at > now
        later = session.execute(waiting.where(*is_later)).all()
    first_later = {row.object_id: row for row in reversed(later)}
    ready: dict[str, str] = {}
    blocked: dict[str, datetime] = {}
    for row in due:
        earlier = first_later.get(row.object_id)
        if earlier is not None and earlier.position < row.position:
            blocked[row.id] = earlier.next_attempt_at
        else:
            ready.setdefault(row.id if is_digested else row.object_id, row.id)
    return list(ready.values())[: None if is_digested else _BATCH_SIZE], blocked


def _postpone(session: Session, rows: ColumnElement[bool], until: datetime) -> None:
    update_rows(session, EventDelivery, rows, EventDelivery.next_attempt_at < until, next_attempt_at=until)


def _record(
    session: Session, delivery_id: str, tries: int, attempts: list[dict[str, object]], attempt: Attempt
) -> datetime | None:
    """Record an attempt; return when the next one follows, if it failed and one does."""
    pending = DeliveryStatus.PENDING
    changes: dict[str, Any] = {"tries": tries, "attempts": [*attempts, attempt.as_json()][-20:]}
    if attempt.is_delivered or tries > len(DELAYS):
        ended = DeliveryStatus.DELIVERED if attempt.is_delivered else DeliveryStatus.FAILED
        at = clock.now() if attempt.is_delivered else None
        DELIVERIES.move(session, delivery_id, pending, ended, delivered_at=at, **changes)
        return None
    delay = DELAYS[tries - 1] * (100 + _random.randint(0, 20)) // 100  # spread by up to 20 %
    next_attempt_at = clock.now() + max(delay, attempt.retry_after or delay)
    is_pending = EventDelivery.id == delivery_id, EventDelivery.status == pending.value
    update_rows(session, EventDelivery, *is_pending, next_attempt_at=next_attempt_at, **changes)
    return next_attempt_at


def _record_on_target(session: Session, target_id: str, attempts: Sequence[Attempt]) -> bool:
    """Record on a target whether it works, pause or disable it; return whether to continue."""
    target = session.get(EventTarget, target_id)
    if target is None:
        return False
    now, last = clock.now(), attempts[-1]
    if any(attempt.is_delivered for attempt in attempts):
        target.failing_since, target.unanswered = None, 0
        if _is_digested(target):
            target.sent = [*(target.sent or ()), clock.isoformat(now)][-MAX_MESSAGES:]
    if last.is_delivered:
        return True
    target.failing_since = target.failing_since or now
    target.unanswered = target.unanswered + 1 if last.holds_up else 0
    if last.holds_up:
        target.paused_until = now + min(DELAYS[0] * 2 ** min(target.unanswered - 1, 10), timedelta(minutes=5))
    elif last.retry_after is not None:
        target.paused_until = now + last.retry_after
    session.flush()
    if last.is_gone:
        _disable(session, target, "the target wants no more events (410 Gone)")
        return False
    if now - target.failing_since >= DISABLED_AFTER:
        _disable(session, target, "no delivery succeeded for three days")
        return False
    return target.paused_until <= now


def _disable(session: Session, target: EventTarget, reason: str) -> None:
    if TARGETS.move(session, target.id, TargetStatus.ENABLED, TargetStatus.DISABLED, reason=reason):
        # The agent reads this event, and an owner's address is not its business.
        url = None if target.audience == Audience.OWNER.value else target.url
        data = {"webhook_id": target.id, "url": url, "reason": reason}
        outbox.record(session, EventType.WEBHOOK_DISABLED, agent_id=target.agent_id, object_id=target.id, data=data)


def _is_due(now: datetime) -> ColumnElement[bool]:
    times = (EventTarget.due_at, EventTarget.lease_until, EventTarget.paused_until)
    return and_(EventTarget.status == TargetStatus.ENABLED.value, *(each <= now for each in times))
