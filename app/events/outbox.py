"""The outbox: an event is inserted in the unit that changes the state, so that neither exists without the other.

The only writer of new `events`.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, and_, bindparam, insert
from sqlalchemy.orm import InstrumentedAttribute, Session

from app.core import clock, identifiers
from app.db.prepared import PreparedInsert, PreparedStatement
from app.db.tables import table_of
from app.events.models import Event

ALL = "*"
_INSERT = PreparedInsert(Event)
_INSERT_ONCE = PreparedInsert(Event, unique=(Event.object_id, Event.dedupe))


class EventType(StrEnum):
    TRANSACTION_PENDING = "transaction.pending"
    TRANSACTION_CONFIRMED = "transaction.confirmed"
    TRANSACTION_FAILED = "transaction.failed"
    FUNDING_PENDING = "funding.pending"
    FUNDING_CONFIRMED = "funding.confirmed"
    FUNDING_FAILED = "funding.failed"
    FUNDING_RECEIVED = "funding.received"
    PAYMENT_PENDING = "payment.pending"
    PAYMENT_CONFIRMED = "payment.confirmed"
    PAYMENT_FAILED = "payment.failed"
    PAYMENT_RECEIVED = "payment.received"
    PAYMENT_VOID = "payment.void"
    PAYMENT_REVERSED = "payment.reversed"
    RISKY_PAYMENTS_PAUSED = "payment.paused"
    PURCHASE_QUEUED = "purchase.queued"
    PURCHASE_RUNNING = "purchase.running"
    PURCHASE_SUBMITTING = "purchase.submitting"
    PURCHASE_COMPLETED = "purchase.completed"
    PURCHASE_PREVIEW = "purchase.preview"
    PURCHASE_ACTION_REQUIRED = "purchase.action_required"
    PURCHASE_FAILED = "purchase.failed"
    PURCHASE_CANCELLED = "purchase.cancelled"
    PURCHASE_UNKNOWN = "purchase.unknown"
    APPROVAL_REQUESTED = "approval.requested"
    APPROVAL_APPROVED = "approval.approved"
    APPROVAL_REJECTED = "approval.rejected"
    APPROVAL_EXPIRED = "approval.expired"
    APPROVAL_CANCELLED = "approval.cancelled"
    APPROVAL_EXECUTED = "approval.executed"
    APPROVAL_FAILED = "approval.failed"
    BUDGET_THRESHOLD_REACHED = "budget.threshold_reached"
    CREDITS_LOW = "credits.low"
    WALLET_FROZEN = "wallet.frozen"
    WALLET_UNFROZEN = "wallet.unfrozen"
    WALLET_EXPORT_REQUESTED = "wallet.export_requested"
    WALLET_EXPORT_CANCELLED = "wallet.export_cancelled"
    WALLET_EXPORTED = "wallet.exported"
    WALLET_IMPORTED = "wallet.imported"
    CONTROLS_CHANGED = "controls.changed"
    OWNER_CHANGED = "owner.changed"
    CONNECTION_OPENED = "connection.opened"
    CONNECTION_ENDED = "connection.ended"
    PAYOUT_PENDING = "payout.pending"
    PAYOUT_PAID = "payout.paid"
    PAYOUT_FAILED = "payout.failed"
    REFUND_PENDING = "refund.pending"
    REFUND_PAID = "refund.paid"
    REFUND_FAILED = "refund.failed"
    REFUND_RECEIVED = "refund.received"
    SERVICE_UNHEALTHY = "service.unhealthy"
    WEBHOOK_DISABLED = "webhook.disabled"
    WEBHOOK_TEST = "webhook.test"


_OF_OWNERS = ("owner.", "wallet.export", "wallet.import")
OWNER_IS_TOLD = tuple(each for each in EventType if each.startswith(_OF_OWNERS))
"""What all targets of an owner are told, whatever they asked for."""
PATTERNS = frozenset({ALL, *EventType, *(f"{each.partition('.')[0]}.*" for each in EventType)})
"""What may be asked for."""


def matches(patterns: Iterable[str], event_type: str) -> bool:
    group = f"{event_type.partition('.')[0]}.*"
    return any(pattern in (ALL, event_type, group) for pattern in patterns)


def expand(patterns: Sequence[str]) -> list[str]:
    return [each.value for each in EventType if matches(patterns, each)]


def record(
    session: Session,
    event_type: EventType,
    *,
    agent_id: str | None,
    object_id: str,
    data: Mapping[str, Any],
    once: str | None = None,
    event_id: str | None = None,
) -> bool:
    """Record an event with the change that the unit makes; return whether this call did it.

    `data` is JSON: amounts are decimal strings, instants ISO 8601. Without an agent, only operators see the event. The
    events of one object are read in the order in which they are recorded, if their units lock that object. With `once`,
    an object has at most one event with that value, as long as events are kept.
    """
    values = {
        "id": event_id or identifiers.new_id(), "type": event_type.value, "agent_id": agent_id, "object_id": object_id,
        "dedupe": once, "data": dict(data), "created_at": clock.now(),
    }  # fmt: skip
    return bool((_INSERT if once is None else _INSERT_ONCE).execute(session, values))


def was_recorded(
    event_type: EventType, agent_id: InstrumentedAttribute[str], once: ColumnElement[str]
) -> ColumnElement[bool]:
    """Return the condition that an agent has an event of a type with this value of `once`."""
    return and_(Event.type == event_type.value, Event.agent_id == agent_id, Event.dedupe == once)


class OutboxOf:
    """Records events of the agents that a subquery finds, in one statement.

    The names of the parameters of the subquery must not be columns of `events`.
    """

    def __init__(self, agent_id: ScalarSelect[Any]) -> None:
        table = table_of(Event)
        given = [column for column in table.columns if column.name not in ("number", "position", "agent_id", "dedupe")]
        values: dict[Any, Any] = {column: bindparam(column.name) for column in given}
        self._insert = PreparedStatement(insert(table).inline().values({**values, table.c.agent_id: agent_id}))

    def record(
        self,
        session: Session,
        event_type: EventType,
        *,
        object_id: str,
        data: Mapping[str, Any],
        parameters: Mapping[str, Any],
    ) -> None:
        """Record an event as `record` does, of the agent that the parameters identify."""
        values = {"id": identifiers.new_id(), "type": event_type.value, "object_id": object_id, "data": dict(data)}
        self._insert.execute(session, {**values, "created_at": clock.now(), **parameters})
