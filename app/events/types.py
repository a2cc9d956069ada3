"""The types of events. A target names them one by one, by group (`payment.*`), or all (`*`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum


class EventType(StrEnum):
    TRANSACTION_PENDING = "transaction.pending"
    TRANSACTION_CONFIRMED = "transaction.confirmed"
    TRANSACTION_FAILED = "transaction.failed"
    FUNDING_PENDING = "funding.pending"
    FUNDING_CONFIRMED = "funding.confirmed"
    FUNDING_FAILED = "funding.failed"
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
    CONTROLS_CHANGED = "controls.changed"
    CONNECTION_OPENED = "connection.opened"
    CONNECTION_ENDED = "connection.ended"
    SERVICE_UNHEALTHY = "service.unhealthy"
    WEBHOOK_DISABLED = "webhook.disabled"
    WEBHOOK_TEST = "webhook.test"


ALL = "*"
PATTERNS = frozenset({ALL, *EventType, *(f"{each.partition('.')[0]}.*" for each in EventType)})
"""What may be asked for."""


def matches(patterns: Iterable[str], event_type: str) -> bool:
    group = f"{event_type.partition('.')[0]}.*"
    return any(pattern in (ALL, event_type, group) for pattern in patterns)


def expand(patterns: Sequence[str]) -> list[str]:
    return [each.value for each in EventType if matches(patterns, each)]
