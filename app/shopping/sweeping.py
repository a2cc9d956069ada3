"""What time does to purchases: lost workers, nobody who buys, evidence past its days. Called by the sweep."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from sqlalchemy import delete, select, update

from app.core import logs
from app.core.unit_of_work import reading, unit_of_work
from app.extensions import db
from app.jobs import JobName
from app.ports import provider
from app.ports.shopper import Failed, Trouble
from app.shopping import carrying, lifecycle, service
from app.shopping.lifecycle import OPEN, Status
from app.shopping.models import Purchase, PurchaseEvidence, PurchaseStep

EVIDENCE_KEPT = timedelta(days=30)
_BATCH = 100
_log = structlog.get_logger(__name__)


def sweep(now: datetime) -> None:
    """Bring queued purchases up again, end those whose worker is lost, and forget what is past its time."""
    with reading() as session:
        open_states = [status.value for status in OPEN]
        rows = session.execute(
            select(Purchase.id, Purchase.status, Purchase.lease_until, Purchase.request_id)
            .where(Purchase.status.in_(open_states))
            .order_by(Purchase.created_at)
            .limit(_BATCH)
        ).all()
    for purchase_id, status, lease_until, request_id in rows:
        try:
            with logs.caused_by(request_id):
                _look_after(purchase_id, Status(status), overdue=lease_until <= now)
        except Exception:
            # One odd purchase must not keep the others from ending.
            _log.exception("purchase_sweep_failed", purchase_id=purchase_id)
    _forget(now)


def leave_all_open() -> list[str]:
    """End every open purchase as unknown, in the current unit; return their ids.

    For a database that was set back: what it calls queued may have been bought since, and must not be bought again.
    """
    message = (
        "The service was set back to an earlier state meanwhile. Look at the orders of the shop's account."
    )
    error = carrying.error_of(Failed(Trouble.OUTCOME_UNKNOWN, message), None)
    open_states = [status.value for status in OPEN]
    rows = db.session.execute(
        select(Purchase.id, Purchase.status).where(Purchase.status.in_(open_states)).order_by(Purchase.id)
    ).all()
    return [
        purchase_id
        for purchase_id, status in rows
        if lifecycle.move(
            purchase_id,
            source=Status(status),
            target=Status.UNKNOWN,
            reason=Trouble.OUTCOME_UNKNOWN.value,
            changes={"error": error},
        )
    ]


def _look_after(purchase_id: str, status: Status, *, overdue: bool) -> None:
    if status is Status.QUEUED and not overdue:
        provider.current().queue.put(JobName.BUY, purchase_id)
    elif status is Status.QUEUED:
        _expire(purchase_id)
    elif overdue and status is Status.RUNNING:
        lost = Failed(
            Trouble.BROWSER_ERROR, "The worker was lost before the order. Nothing was bought; send it again."
        )
        if carrying.end_running(purchase_id, target=Status.FAILED, error=carrying.error_of(lost, None)):
            _log.warning("purchase_lost", purchase_id=purchase_id)
    elif overdue:
        _leave_open(purchase_id)


def _expire(purchase_id: str) -> None:
    late = Failed(Trouble.TIMEOUT, "No shopping worker was free in time. Nothing was bought; send it again.")
    with unit_of_work():
        ended = lifecycle.move(
            purchase_id,
            source=Status.QUEUED,
            target=Status.FAILED,
            reason=late.trouble.value,
            changes={"error": carrying.error_of(late, None), "cost_nanos": 0},
        )
        if ended:
            service.give_price_back(purchase_id)


def _leave_open(purchase_id: str) -> None:
    message = "The worker was lost around the moment of the order. Look at the orders of the shop's account."
    error = carrying.error_of(Failed(Trouble.OUTCOME_UNKNOWN, message), None)
    with unit_of_work():
        if lifecycle.move(
            purchase_id,
            source=Status.SUBMITTING,
            target=Status.UNKNOWN,
            reason=Trouble.OUTCOME_UNKNOWN.value,
            changes={"error": error},
        ):
            _log.warning("purchase_unknown", purchase_id=purchase_id)


def _forget(now: datetime) -> None:
    ended = [status.value for status in Status if status not in OPEN]
    with unit_of_work() as session:
        session.execute(delete(PurchaseEvidence).where(PurchaseEvidence.created_at < now - EVIDENCE_KEPT))
        session.execute(delete(PurchaseStep).where(PurchaseStep.at < now - EVIDENCE_KEPT))
        # Every end takes what was sealed away; this is the net beneath.
        session.execute(
            update(Purchase)
            .where(Purchase.status.in_(ended), Purchase.sealed.is_not(None))
            .values(sealed=None)
        )
