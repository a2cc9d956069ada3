"""Idempotency keys: claim, bind, replay and prune.

A claim on a key is a row with a lease. The use case binds the record that it makes to the claim, in the unit that
makes it: after a crash the response is rebuilt from the record, and a slow request that lost its claim records
nothing. Only this module writes `idempotency_keys`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Sequence
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
_OTHER_BODY = (
    f"This {HEADER} was used for a request with another body. To repeat that request, send its body unchanged; for "
    "another request, send another key."
)
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

    def __init__(self, holder: str | None = None, *row_ids: str) -> None:
        self._holder, self._row_ids = holder, row_ids
        self.is_bound = False

    def bind(self, session: Session, subject_id: str) -> None:
        """Tie the record that the current unit makes to the key, if there is one.

        Once the unit is committed, `is_bound` is set: a later failure of the database leaves the outcome unknown.

        Raises: IdempotencyConflict when another request took the claim over: the unit must roll back.
        """
        after_commit(self._mark_bound)
        if not self._row_ids:
            return
        updated = session.execute(update(IdempotencyKey).where(self._is_held).values(subject_id=subject_id))
        if updated.rowcount != len(self._row_ids):  # type: ignore[attr-defined]
            raise IdempotencyConflict("Another request with this Idempotency-Key has replaced this one.")

    def store_response(self, status: int, body: bytes) -> None:
        for row_id in self._row_ids:
            values = {"answer_status": status, "answer_sealed": _ANSWERS.seal(body, row_id)}
            is_held = and_(self._is_held, IdempotencyKey.id == row_id)
            with unit_of_work() as session:
                session.execute(update(IdempotencyKey).where(is_held).values(values))

    def end_lease(self) -> None:
        """Let the next request under the key be rebuilt from the record without waiting for the lease to expire."""
        if not self._row_ids:
            return
        with unit_of_work() as session:
            session.execute(update(IdempotencyKey).where(self._is_held).values(lease_until=clock.now()))

    def release(self) -> None:
        """Release a key under which nothing was recorded; if that fails, its lease expires."""
        if not self._row_ids:
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
        if self._row_ids:
            with unit_of_work() as session:
                session.execute(delete(IdempotencyKey).where(self._is_held))

    @property
    def _is_held(self) -> ColumnElement[bool]:
        return and_(IdempotencyKey.id.in_(self._row_ids), IdempotencyKey.holder == self._holder)

    def joined(self, other: Claim) -> Claim:
        """Return one claim on the keys of two that the same request holds."""
        return Claim(self._holder, *self._row_ids, *other._row_ids)

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


def claim_key(
    scope: KeyScope,
    content: bytes,
    *,
    sent: bytes | None = None,
    lifetime: timedelta = RETENTION,
    former: KeyScope | None = None,
    conflict: str = _OTHER_BODY,
) -> Claim | StoredResponse:
    """Claim a key for a request with this content, or return what an earlier request under it has left.

    `content` is the canonical form of the body, `sent` its bytes. After `lifetime`, at most the retention period, the
    key is a new one.

    The previous version compares the bytes, and also runs during an upgrade. `former` is the key by which it knows the
    request: it is claimed, too, so that neither version repeats what the other has executed.

    Raises: IdempotencyConflict while the earlier request is still running, or with `conflict` if it was another one.
    """
    holder = new_id()
    first, sent = Claim(holder), content if sent is None else sent
    if former is not None and former != scope:
        found = _claim_one(former, content, sent, holder, lifetime=lifetime, conflict=conflict)
        if isinstance(found, StoredResponse):
            return found
        first = found
    try:
        found = _claim_one(scope, content, sent, holder, lifetime=lifetime, conflict=conflict)
    except IdempotencyConflict:
        first.release()
        raise
    if isinstance(found, StoredResponse):
        first.release()
        return found
    return first.joined(found)


def _claim_one(
    scope: KeyScope, content: bytes, sent: bytes, holder: str, *, lifetime: timedelta, conflict: str
) -> Claim | StoredResponse:
    now, row_id = clock.now(), new_id()
    canonical, of_bytes = _fingerprints(content), _fingerprints(sent)
    hmacs = {"request_hmac": canonical[0], "body_hmac": of_bytes[0]}
    try:
        with unit_of_work() as session:
            session.add(
                IdempotencyKey(
                    id=row_id,
                    **asdict(scope),
                    **hmacs,
                    holder=holder,
                    lease_until=now + _LEASE,
                    created_at=now,
                )
            )
            session.flush()
        return Claim(holder, row_id)
    except IntegrityError:
        pass
    with unit_of_work() as session:
        query = select(IdempotencyKey).filter_by(**asdict(scope)).with_for_update()
        row = session.scalars(query).one_or_none()
        if row is None:
            raise _in_progress(now, now)
        if row.created_at < now - lifetime:
            return _take_over(session, row, holder=holder, now=now, **hmacs)
        if not (_is_among(row.request_hmac, canonical) or _is_among(row.body_hmac, of_bytes)):
            raise IdempotencyConflict(conflict)
        if row.answer_status is None and row.lease_until > now:
            raise _in_progress(row.lease_until, now)
        if row.answer_status is None and row.subject_id is None:
            return _take_over(session, row, holder=holder, now=now, **hmacs)
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


def _take_over(
    session: Session,
    row: IdempotencyKey,
    *,
    holder: str,
    now: datetime,
    body_hmac: str,
    request_hmac: str | None = None,
) -> Claim:
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
            request_hmac=request_hmac,
            subject_id=None,
            answer_status=None,
            answer_sealed=None,
        )
        .execution_options(synchronize_session=False)
    )
    if updated.rowcount != 1:  # type: ignore[attr-defined]
        raise _in_progress(now, now)
    return Claim(holder, row.id)


def _in_progress(lease_until: datetime, now: datetime) -> IdempotencyConflict:
    """Return the error of a request that is repeated too early; after the lease, it can be decided."""
    return IdempotencyConflict(
        f"The first request with this {HEADER} is still running.",
        retry_after_seconds=max(1, math.ceil((lease_until - now).total_seconds())),
    )


def _is_among(stored: str | None, candidates: Sequence[str]) -> bool:
    return stored is not None and any(hmac.compare_digest(stored, each) for each in candidates)


def _fingerprints(body: bytes) -> list[str]:
    """Return the fingerprints of a body, under the current secret and under those that are still accepted."""
    secrets = app_state().settings.secret_key_list()
    return [digest.hex() for digest in keyed_digests("idempotency", body, secrets)]
