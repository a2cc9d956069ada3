"""Tables of events: what happened, who is notified of it, and each delivery."""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Index, String, Text, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from app.core import clock
from app.db.tables import ID, SERIAL, UtcDateTime, partial_index
from app.extensions import Model


class Event(Model):
    """Something that happened, inserted in the unit that changed the state.

    `number` is the order of insertion, `position` the order of reading: a unit may commit after one with higher
    numbers, so positions are assigned afterwards, one after another (`app.events.feed`).
    """

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("object_id", "dedupe", name="uq_events_dedupe"),
        Index("ix_events_agent_id_position", "agent_id", "position"),
        Index("ix_events_created_at", "created_at"),
        partial_index("ix_events_new", "number", where="position IS NULL"),
    )

    number: Mapped[int] = mapped_column(SERIAL, primary_key=True, autoincrement=True)
    id: Mapped[str] = mapped_column(ID, unique=True)
    position: Mapped[int | None] = mapped_column(BigInteger, unique=True)
    type: Mapped[str] = mapped_column(String(40))
    # Without an agent, only operators see it.
    agent_id: Mapped[str | None] = mapped_column(ID)
    object_id: Mapped[str] = mapped_column(String(64))
    # An object has one event with a value, however often it is recorded.
    dedupe: Mapped[str | None] = mapped_column(String(100))
    data: Mapped[dict[str, Any]] = mapped_column(JSON)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


class EventSequence(Model):
    """The last position that was assigned: one row, and the lock of assigning more."""

    __tablename__ = "event_sequence"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    last_position: Mapped[int] = mapped_column(BigInteger)


class EventQueue(Model):
    """The targets of one agent, owner or mailbox: when they were served last, and by how many threads now."""

    __tablename__ = "event_queues"

    name: Mapped[str] = mapped_column(String(80), primary_key=True)
    rank: Mapped[int]
    served_at: Mapped[datetime] = mapped_column(UtcDateTime)
    # Two leases: at most two threads serve a queue.
    first_until: Mapped[datetime] = mapped_column(UtcDateTime)
    second_until: Mapped[datetime] = mapped_column(UtcDateTime)
    # Until when the time that threads were busy with it counts.
    used_until: Mapped[datetime] = mapped_column(UtcDateTime)


class EventTarget(Model):
    """Where events are delivered to: a URL, an email address or a browser, of an agent, an owner or an operator."""

    __tablename__ = "event_targets"
    __allow_unmapped__ = True
    __table_args__ = (
        Index("ix_event_targets_agent_id", "agent_id"),
        Index("ix_event_targets_due_at", "due_at"),
        Index("ix_event_targets_queue", "queue"),
        Index("ix_event_targets_created_at", "created_at", "id"),
        CheckConstraint("(audience = 'operator') = (agent_id IS NULL)", name="ck_event_targets_audience"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    audience: Mapped[str] = mapped_column(String(10))
    agent_id: Mapped[str | None] = mapped_column(ID)
    url: Mapped[str] = mapped_column(Text)
    description: Mapped[str] = mapped_column(String(100))
    types: Mapped[list[str]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(String(10))
    status_reason: Mapped[str | None] = mapped_column(String(100))
    queue: Mapped[str | None] = mapped_column(String(80))
    # Who created it: a master key, an owner key or an agent's key.
    created_by: Mapped[str | None] = mapped_column(ID)
    # The times of the last messages to a mailbox or browser.
    sent: Mapped[list[str] | None] = mapped_column(JSON(none_as_null=True))
    # The secret that signs, or the keys of a browser; and the former secret, which signs, too, until then.
    sealed: Mapped[str] = mapped_column(Text)
    former_sealed: Mapped[str | None] = mapped_column(Text)
    former_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    # The thread that delivers to it, and until when nothing is sent to it after it did not answer.
    holder: Mapped[str | None] = mapped_column(ID)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
    # When its first delivery is due, at the latest; NULL if none waits.
    due_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    paused_until: Mapped[datetime] = mapped_column(UtcDateTime)
    # Since when no delivery succeeded, and how many attempts in a row had no answer.
    failing_since: Mapped[datetime | None] = mapped_column(UtcDateTime)
    unanswered: Mapped[int] = mapped_column(default=0)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    secret: str | None = None
    """What was sealed, where it is shown: once, when it is made."""

    @property
    def former_secret_until(self) -> datetime | None:
        return self.former_until if self.former_until is not None and self.former_until > clock.now() else None


class EventDelivery(Model):
    """An event for a target, with the attempts to deliver it: time, status code or error, and duration of each."""

    __tablename__ = "event_deliveries"
    __table_args__ = (
        UniqueConstraint("target_id", "event_id", name="uq_event_deliveries_event"),
        Index("ix_event_deliveries_listing", "target_id", "position"),
        Index("ix_event_deliveries_event_id", "event_id"),
        Index("ix_event_deliveries_created_at", "created_at"),
        partial_index("ix_event_deliveries_due", "target_id", "next_attempt_at", where="status = 'pending'"),
        # Only the first of an object is sent.
        partial_index("ix_event_deliveries_order", "target_id", "object_id", "position", where="status = 'pending'"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    target_id: Mapped[str] = mapped_column(ID)
    event_id: Mapped[str] = mapped_column(ID)
    object_id: Mapped[str] = mapped_column(String(64))
    position: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str] = mapped_column(String(10))
    tries: Mapped[int] = mapped_column(default=0)
    attempts: Mapped[list[dict[str, Any]]] = mapped_column(JSON)
    next_attempt_at: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    delivered_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
