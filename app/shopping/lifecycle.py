"""The state machine of purchases: the only writer of `status`, with an event row for every move.

queued → running → submitting → completed | unknown; running → preview | action_required | failed | unknown;
queued → cancelled | failed, and unknown where the database was set back; unknown → completed when the shop's
confirmation is seen late. `submitting` is committed before the order button may be pressed and is entered once: whoever
finds it has no right to press again.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import update

from app.core import clock, logs
from app.core.unit_of_work import after_commit
from app.extensions import db
from app.shopping.models import Purchase, PurchaseEvent

_log = structlog.get_logger(__name__)


class Status(StrEnum):
    """The states of a purchase, as on the wire."""

    QUEUED = "queued"
    RUNNING = "running"
    SUBMITTING = "submitting"
    COMPLETED = "completed"
    PREVIEW = "preview"
    ACTION_REQUIRED = "action_required"
    FAILED = "failed"
    CANCELLED = "cancelled"
    UNKNOWN = "unknown"


OPEN = frozenset({Status.QUEUED, Status.RUNNING, Status.SUBMITTING})
"""The states that a purchase leaves by itself."""

_MOVES: Mapping[Status, frozenset[Status]] = {
    Status.QUEUED: frozenset({Status.RUNNING, Status.CANCELLED, Status.FAILED, Status.UNKNOWN}),
    Status.RUNNING: frozenset(
        {Status.SUBMITTING, Status.PREVIEW, Status.ACTION_REQUIRED, Status.FAILED, Status.UNKNOWN}
    ),
    Status.SUBMITTING: frozenset({Status.COMPLETED, Status.UNKNOWN}),
    Status.UNKNOWN: frozenset({Status.COMPLETED}),
}


def record(purchase: Purchase) -> None:
    """Add a new purchase with its first event, in the current unit."""
    purchase.request_id = logs.origin()
    db.session.add(purchase)
    db.session.add(_event(purchase.id, Status(purchase.status), None))
    db.session.flush()


def move(
    purchase_id: str,
    *,
    source: Status,
    target: Status,
    holder: str | None = None,
    reason: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> bool:
    """Move a purchase if it still is in `source` (and in this holder's hands); tell whether this call did it.

    Raises: ValueError for a move that the machine does not have: a defect.
    """
    if target not in _MOVES.get(source, frozenset()):
        msg = f"a purchase never goes from {source} to {target}"
        raise ValueError(msg)
    now = clock.now()
    values: dict[str, Any] = {**(changes or {}), "status": target.value}
    if target not in OPEN:
        # What was needed to buy is needed no more.
        values |= {"sealed": None, "finished_at": now}
    conditions = [Purchase.id == purchase_id, Purchase.status == source.value]
    if holder is not None:
        conditions.append(Purchase.holder == holder)
    moved = db.session.execute(
        update(Purchase)
        .where(*conditions)
        .values(**values)
        .returning(Purchase.request_id)
        .execution_options(synchronize_session=False)
    ).one_or_none()
    if moved is None:
        return False
    db.session.add(_event(purchase_id, target, reason))
    after_commit(lambda: _tell(moved.request_id, purchase_id, target, reason))
    return True


def _tell(request_id: str | None, purchase_id: str, status: Status, reason: str | None) -> None:
    with logs.caused_by(request_id):
        _log.info("purchase_moved", purchase_id=purchase_id, status=status.value, reason=reason)


def _event(purchase_id: str, status: Status, reason: str | None) -> PurchaseEvent:
    return PurchaseEvent(purchase_id=purchase_id, status=status.value, reason=reason, at=clock.now())
