"""The state machine of purchases.

`submitting` is committed before the order button may be clicked and is entered once: a worker that finds a purchase in
it must not click again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app.core import clock
from app.core.money import usd_string
from app.db.state_machine import StateMachine, Transitions
from app.events import outbox
from app.events.outbox import EventType
from app.shopping.models import Purchase, PurchaseEvent


class PurchaseStatus(StrEnum):
    """The states of a purchase, as in the API."""

    QUEUED = "queued"
    RUNNING = "running"
    SUBMITTING = "submitting"
    COMPLETED = "completed"
    PREVIEW = "preview"
    ACTION_REQUIRED = "action_required"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


OPEN_STATUSES = frozenset({PurchaseStatus.QUEUED, PurchaseStatus.RUNNING, PurchaseStatus.SUBMITTING})
"""The states that a purchase leaves automatically."""


def _values(status: PurchaseStatus, _reason: str | None) -> dict[str, Any]:
    # Credentials and address are not needed after the end.
    return {} if status in OPEN_STATUSES else {"sealed": None, "finished_at": clock.now()}


def _announce(session: Session, row: Any, status: PurchaseStatus, reason: str | None) -> None:
    """Record the event of a status. An account without a wallet has no agent: only operators see its purchases."""
    data = {
        "purchase_id": row.id,
        "wallet_id": row.wallet_id,
        "status": status.value,
        "reason": reason,
        "host": row.host,
        "quantity": row.quantity,
        "dry_run": row.dry_run,
        "total_usd": None if row.total_nanos is None else usd_string(row.total_nanos),
    }
    agent_id = None if row.wallet_id is None else row.account_id
    outbox.record(session, EventType(f"purchase.{status.value}"), agent_id=agent_id, object_id=row.id, data=data)


PURCHASES = StateMachine(
    Purchase.status,
    Transitions(
        initial={PurchaseStatus.QUEUED},
        permitted={
            # `unknown` after a database restore.
            PurchaseStatus.QUEUED: {
                PurchaseStatus.RUNNING,
                PurchaseStatus.CANCELLED,
                PurchaseStatus.FAILED,
                PurchaseStatus.UNKNOWN,
            },
            PurchaseStatus.RUNNING: {
                PurchaseStatus.SUBMITTING,
                PurchaseStatus.PREVIEW,
                PurchaseStatus.ACTION_REQUIRED,
                PurchaseStatus.FAILED,
                PurchaseStatus.UNKNOWN,
            },
            PurchaseStatus.SUBMITTING: {PurchaseStatus.COMPLETED, PurchaseStatus.UNKNOWN},
            # The shop's confirmation was seen late.
            PurchaseStatus.UNKNOWN: {PurchaseStatus.COMPLETED},
        },
    ),
    event=PurchaseEvent,
    logger=structlog.get_logger(__name__),
    values=_values,
    announce=_announce,
    announced=(
        Purchase.id, Purchase.account_id, Purchase.wallet_id, Purchase.host, Purchase.quantity, Purchase.dry_run,
        Purchase.total_nanos,
    ),
)  # fmt: skip
