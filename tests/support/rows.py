"""What an operator does about authenticated rows, for tests that change them by SQL on purpose."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta

from sqlalchemy import TextClause, delete, select, text
from sqlalchemy.orm import Session

from app import authenticated
from app.authenticated import RowSeal, SealedColumn, UnsealedRowPermit
from app.core import clock
from app.db.unit_of_work import unit_of_work
from app.idempotency.service import IdempotencyKey
from app.ports.vault import SecretLocation
from app.spending import controls
from app.state import app_state


@functools.cache
def _tables_with_rows() -> TextClause:
    names = [seal.table.name for seal in authenticated.seals()]
    found = (f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in names)  # noqa: S608 - our names
    return text(" UNION ALL ".join(found))


def seals_with_rows(session: Session) -> list[RowSeal]:
    """Return the seals of the tables that are not empty, found by one statement instead of one for each."""
    names = set(session.scalars(_tables_with_rows()))
    return [seal for seal in authenticated.seals() if seal.table.name in names]


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
