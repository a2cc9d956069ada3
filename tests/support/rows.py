"""What an operator does about authenticated rows, for tests that change them by SQL on purpose."""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import delete, select

from app import authenticated
from app.authenticated import SealedColumn, UnsealedRowPermit
from app.core import clock
from app.db.unit_of_work import unit_of_work
from app.idempotency.service import IdempotencyKey
from app.ports.vault import SecretLocation
from app.spending import controls
from app.state import app_state


def accept() -> int:
    """Accept every row as it is in the database; return how many had no valid MAC."""
    with unit_of_work() as session:
        controls.align_versions(session)
    return authenticated.restamp_all(accepts_changed=True)


def permit_until(until: datetime) -> None:
    """Accept rows without a MAC until then, as after an upgrade."""
    location = SecretLocation("unsealed_row_permits", "sealed", "1")
    sealed = app_state().ports.vault.seal(until.isoformat().encode(), location)
    with unit_of_work() as session:
        session.execute(delete(UnsealedRowPermit))
        session.add(UnsealedRowPermit(id=1, sealed=sealed))


def lose_responses(*, bound: bool = True) -> None:
    """Put idempotency keys into the state that a crashed process leaves, with their leases expired."""
    with unit_of_work() as session:
        for row in session.scalars(select(IdempotencyKey)):
            row.answer_status, row.lease_until = None, clock.now() - timedelta(seconds=1)
            row.subject_id = row.subject_id if bound else None
            subject = SealedColumn(IdempotencyKey.__tablename__, "answer_sealed")
            row.answer_sealed = subject.seal(row.subject_id, row.id) if row.subject_id else None
