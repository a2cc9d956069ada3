"""The sweep of purchases: lost workers, and queued purchases that no worker takes."""

from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, and_, select, true
from sqlalchemy.orm import Session

from app.db.unit_of_work import read_only_unit, unit_of_work
from app.jobs import JobName
from app.observability import telemetry
from app.ports.shopper import FailureCode, PurchaseFailed
from app.shopping import purchase_runner
from app.shopping.models import OPEN_STATUSES, PURCHASES, Purchase, PurchaseStatus
from app.spending import holds as spending_holds
from app.state import app_state

_BATCH = 100
_log = structlog.get_logger(__name__)


def sweep(now: datetime) -> None:
    """Enqueue queued purchases again, and end those of lost workers."""
    with read_only_unit() as session:
        open_states = [status.value for status in OPEN_STATUSES]
        rows = session.execute(
            select(Purchase.id, Purchase.status, Purchase.lease_until, Purchase.request_id)
            .where(Purchase.status.in_(open_states))
            .order_by(Purchase.created_at)
            .limit(_BATCH)
        ).all()
    for purchase_id, status, lease_until, request_id in rows:
        try:
            with telemetry.caused_by(request_id):
                _process(purchase_id, PurchaseStatus(status), now, overdue=lease_until <= now)
        except Exception:
            # One failing purchase must not block the others.
            _log.exception("purchase_sweep_failed", purchase_id=purchase_id)
    _release_approved(now)


def mark_all_unknown(session: Session) -> list[str]:
    """End every open purchase as unknown; return their ids.

    After a database restore: what it calls queued may have been bought since, and must not be bought again.
    """
    return sorted(_mark_unknown(session, true(), OPEN_STATUSES, "The service was restored to an earlier state."))


def _process(purchase_id: str, status: PurchaseStatus, now: datetime, *, overdue: bool) -> None:
    # A worker may have renewed the lease since it was read.
    still_overdue = and_(Purchase.id == purchase_id, Purchase.lease_until <= now)
    if status is PurchaseStatus.QUEUED and not overdue:
        app_state().ports.queue.enqueue(JobName.BUY, purchase_id)
    elif status is PurchaseStatus.QUEUED:
        message = "No shopping worker was free in time. Nothing was bought."
        _fail(purchase_id, still_overdue, status, FailureCode.TIMEOUT, message)
    elif overdue and status is PurchaseStatus.RUNNING:
        message = "The worker was lost before the order. Nothing was bought."
        if _fail(purchase_id, still_overdue, status, FailureCode.BROWSER_ERROR, message):
            _log.warning("purchase_worker_lost", purchase_id=purchase_id)
    elif overdue:
        with unit_of_work() as session:
            if _mark_unknown(session, still_overdue, status, "The worker was lost during the order."):
                _log.warning("purchase_outcome_unknown", purchase_id=purchase_id)


def _fail(purchase_id: str, row: ColumnElement[bool], source: PurchaseStatus, code: FailureCode, message: str) -> bool:
    error = purchase_runner.stored_error(PurchaseFailed(code, message), None)
    return purchase_runner.end_unordered(purchase_id, PurchaseStatus.FAILED, error, source=source, row=row)


def _mark_unknown(
    session: Session, rows: ColumnElement[bool], sources: PurchaseStatus | AbstractSet[PurchaseStatus], message: str
) -> list[str]:
    code = FailureCode.OUTCOME_UNKNOWN
    failure = PurchaseFailed(code, f"{message} Check the orders of the shop's account.")
    error = purchase_runner.stored_error(failure, None)
    return PURCHASES.move(session, rows, sources, PurchaseStatus.UNKNOWN, reason=code.value, error=error)


def _release_approved(now: datetime) -> None:
    """Release what is held since an approval for purchases that ended without an order."""
    unordered = (PurchaseStatus.FAILED, PurchaseStatus.CANCELLED, PurchaseStatus.ACTION_REQUIRED)
    with read_only_unit() as session:
        is_unordered = Purchase.status.in_([status.value for status in unordered])
        is_recent = Purchase.finished_at > now - timedelta(days=30)
        asked = select(Purchase.approval_id).where(Purchase.approval_id.is_not(None), is_unordered, is_recent)
        references = session.scalars(asked).all()
        held = spending_holds.states_of(session, [each for each in references if each is not None])
    for reference, state in held.items():
        if state is spending_holds.SpendingHoldState.HELD:
            with unit_of_work() as session:
                spending_holds.release(session, reference)
