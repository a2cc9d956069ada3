"""Idempotency keys: claim, bind, replay and prune.

A claim on a key is a row with a lease. The use case binds the record that it makes to the claim, in the unit that
makes it: after a crash the response is rebuilt from the record, and a slow request that lost its claim records
nothing. Only this module writes `idempotency_keys`.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta

import structlog
from sqlalchemy import ColumnElement, and_, delete, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Session

from app.core import clock
from app.core.identifiers import keyed_digests, new_id
from app.db import batching
from app.db.unit_of_work import after_commit, unit_of_work
from app.errors import IdempotencyConflict
from app.idempotency.models import IdempotencyKey
from app.sealing import SealedColumn
from app.state import app_state

_log = structlog.get_logger(__name__)

HEADER = "Idempotency-Key"
RETENTION = timedelta(hours=24)
_ANSWERS = SealedColumn("idempotency_keys", "answer_sealed")
_LEASE = timedelta(seconds=60)
_BATCH_SIZE = 1000
_MAX_BATCHES = 10


@dataclass(frozen=True, slots=True)
class KeyScope:
    """A key, and the owner and route for which it is one."""

    owner_id: str
    method: str
    path: str
    key: str


class Claim:
    """The right of one request to execute: under an idempotency key, or without one."""

    def __init__(self, row_id: str | None = None, holder: str | None = None) -> None:
        self._row_id, self._holder = row_id, holder
        self.is_bound = False

    def bind(self, session: Session, subject_id: str) -> None:
        """Tie the record that the current unit makes to the key, if there is one.

        Once the unit is committed, `is_bound` is set: a later failure of the database leaves the outcome unknown.

        Raises: IdempotencyConflict when another request took the claim over: the unit must roll back.
        """
        after_commit(self._mark_bound)
        if self._row_id is None:
            return
        updated = session.execute(update(IdempotencyKey).where(self._is_held).values(subject_id=subject_id))
        if updated.rowcount != 1:  # type: ignore[attr-defined]
            raise IdempotencyConflict("Another request with this Idempotency-Key has replaced this one.")

    def store_response(self, status: int, body: bytes) -> None:
        """Store the response for replay."""
        if self._row_id is None:
            return
        values = {"answer_status": status, "answer_sealed": _ANSWERS.seal(body, self._row_id)}
        with unit_of_work() as session:
            session.execute(update(IdempotencyKey).where(self._is_held).values(values))

    def end_lease(self) -> None:
        """Let the next request under the key be rebuilt from the record without waiting for the lease to expire."""
        if self._row_id is None:
            return
        with unit_of_work() as session:
            session.execute(update(IdempotencyKey).where(self._is_held).values(lease_until=clock.now()))

    def release(self) -> None:
        """Release a key under which nothing was recorded; if that fails, its lease expires."""
        if self._row_id is None:
            return
        # A commit with a lost outcome may have recorded something.
        unrecorded = delete(IdempotencyKey).where(self._is_held, IdempotencyKey.subject_id.is_(None))
        try:
            with unit_of_work() as session:
                session.execute(unrecorded)
        except SQLAlchemyError:
            # The failure before this one is the client's.
            _log.exception("idempotency_key_not_released")

    def withdraw(self) -> None:
        """Delete a key to which a call was bound that certainly had no effect, so that it may be repeated."""
        if self._row_id is not None:
            with unit_of_work() as session:
                session.execute(delete(IdempotencyKey).where(self._is_held))

    @property
    def _is_held(self) -> ColumnElement[bool]:
        return and_(IdempotencyKey.id == self._row_id, IdempotencyKey.holder == self._holder)

    def _mark_bound(self) -> None:
        self.is_bound = True


NO_CLAIM = Claim()
"""For work that no request has asked for, such as a command's."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What is known of a request that was executed before: its record, and its response unless it was lost."""

    row_id: str
    subject_id: str | None
    answer_status: int | None
    answer_sealed: str | None

    def read(self) -> tuple[int, bytes] | None:
        """Return the stored status and body, or None if only the record is known."""
        if self.answer_status is None or self.answer_sealed is None:
            return None
        body = _ANSWERS.open(self.answer_sealed, self.row_id)
        return self.answer_status, body


def claim_key(scope: KeyScope, body: bytes, *, lifetime: timedelta = RETENTION) -> Claim | StoredResponse:
    """Claim a key for a request with this body, or return what an earlier request under it has left.

    After `lifetime`, at most the retention period, the key is a new one.

    Raises: IdempotencyConflict while the earlier request is still running, or when its body was another.
    """
    now, holder, row_id = clock.now(), new_id(), new_id()
    body_hmac, *older_hmacs = _fingerprints(body)
    try:
        with unit_of_work() as session:
            session.add(
                IdempotencyKey(
                    id=row_id,
                    **asdict(scope),
                    body_hmac=body_hmac,
                    holder=holder,
                    lease_until=now + _LEASE,
                    created_at=now,
                )
            )
            session.flush()
        return Claim(row_id, holder)
    except IntegrityError:
        pass
    with unit_of_work() as session:
        query = select(IdempotencyKey).filter_by(**asdict(scope)).with_for_update()
        row = session.scalars(query).one_or_none()
        if row is None:
            raise _in_progress()
        if row.created_at < now - lifetime:
            return _take_over(session, row, holder=holder, now=now, body_hmac=body_hmac)
        if not any(hmac.compare_digest(row.body_hmac, candidate) for candidate in (body_hmac, *older_hmacs)):
            raise IdempotencyConflict(f"This {HEADER} was used for a request with another body.")
        if row.answer_status is None and row.lease_until > now:
            raise _in_progress()
        if row.answer_status is None and row.subject_id is None:
            return _take_over(session, row, holder=holder, now=now, body_hmac=body_hmac)
        return StoredResponse(row.id, row.subject_id, row.answer_status, row.answer_sealed)


def derived_key(content: bytes) -> str:
    """Return the key of a request without one, by what it asks for."""
    return "derived-" + hashlib.sha256(content).hexdigest()


def prune(now: datetime, *, batch_size: int = _BATCH_SIZE, max_batches: int = _MAX_BATCHES) -> int:
    """Delete keys older than 24 hours, in a bounded number of short units; return how many."""
    old = select(IdempotencyKey.id).where(IdempotencyKey.created_at < now - RETENTION)
    return batching.delete_in_batches(
        IdempotencyKey.id,
        old.order_by(IdempotencyKey.created_at),
        batch_size=batch_size,
        max_batches=max_batches,
    )


def _take_over(session: Session, row: IdempotencyKey, *, holder: str, now: datetime, body_hmac: str) -> Claim:
    """Take over an abandoned claim.

    The update names all values that were read, for a caller that read them before it locked the row.

    Raises: IdempotencyConflict when the row has changed since.
    """
    as_read = [
        IdempotencyKey.id == row.id,
        IdempotencyKey.holder == row.holder,
        IdempotencyKey.created_at == row.created_at,
        IdempotencyKey.lease_until == row.lease_until,
        IdempotencyKey.subject_id.is_not_distinct_from(row.subject_id),
        IdempotencyKey.answer_status.is_not_distinct_from(row.answer_status),
    ]
    updated = session.execute(
        update(IdempotencyKey)
        .where(*as_read)
        .values(
            holder=holder,
            lease_until=now + _LEASE,
            created_at=now,
            body_hmac=body_hmac,
            subject_id=None,
            answer_status=None,
            answer_sealed=None,
        )
        .execution_options(synchronize_session=False)
    )
    if updated.rowcount != 1:  # type: ignore[attr-defined]
        raise _in_progress()
    return Claim(row.id, holder)


def _in_progress() -> IdempotencyConflict:
    return IdempotencyConflict(
        f"The first request with this {HEADER} is still running.", retry_after_seconds=1
    )


def _fingerprints(body: bytes) -> list[str]:
    """Return the fingerprints of a body, under the current secret and under those that are still accepted."""
    secrets = app_state().settings.secret_key_list()
    return [digest.hex() for digest in keyed_digests("idempotency", body, secrets)]
