"""The state machine of purchases.

`submitting` is committed before the order button may be pressed and is entered once: a worker that finds a purchase in
it must not press again.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import structlog

from app.core import clock
from app.core.state_machine import Transitions
from app.db.state_machine import StateMachine
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
)
