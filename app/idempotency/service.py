"""Idempotency keys: claim, bind, replay and prune.

A claim on a key is a row with a lease. The use case binds the record that it makes to the claim, in the unit that
makes it: after a crash the response is rebuilt from the record, and a slow request that lost its claim records
nothing. Only this module writes `idempotency_keys`.
"""

import hashlib
import hmac
import math
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Self

import structlog
from sqlalchemy import ColumnElement, Index, String, Text, and_, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.orm import Mapped, Session, mapped_column

from app import authenticated
from app.authenticated import SealedColumn
from app.core import clock
from app.core.identifiers import keyed_digests, new_id
from app.db.tables import ID, UtcDateTime, delete_rows, update_rows
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import IdempotencyConflict
from app.extensions import Model
from app.state import app_state


class IdempotencyKey(Model):
    """A key of one owner on one route, the record that was made under it, and the stored response."""

    __tablename__ = "idempotency_keys"
    __table_args__ = (
        Index("uq_idempotency_keys_scope", "owner_id", "method", "path", "key", unique=True),
        Index("ix_idempotency_keys_created_at", "created_at"),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    owner_id: Mapped[str] = mapped_column(ID)
    method: Mapped[str] = mapped_column(String(8))
    path: Mapped[str] = mapped_column(String(200))
    key: Mapped[str] = mapped_column(String(255))
    # The same; version 1.0, which may still run during an upgrade, inserts and needs it.
    body_hmac: Mapped[str] = mapped_column(String(64))
    request_hmac: Mapped[str | None] = mapped_column(String(64))
    holder: Mapped[str] = mapped_column(ID)
    subject_id: Mapped[str | None] = mapped_column(ID)
    answer_status: Mapped[int | None]
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)

    def record(self) -> str:
        """Return the id of the record. Raises: RowChanged."""
        with read_only_unit() as session:
            if self.answer_sealed is None:
                is_ours = authenticated.is_permitted(session)
            else:
                is_ours = _ANSWERS.open(self.answer_sealed, self.id).decode() == self.subject_id
        if not is_ours or self.subject_id is None:
            raise authenticated.RowChanged(self.__tablename__, self.id)
        return self.subject_id

    def read(self) -> tuple[int, bytes] | None:
        """Return the stored status and body, or None if only the record is known."""
        if self.answer_status is None or self.answer_sealed is None:
            return None
        return self.answer_status, _ANSWERS.open(self.answer_sealed, self.id)


_log = structlog.get_logger(__name__)

HEADER = "Idempotency-Key"
RETENTION = timedelta(hours=24)
_ANSWERS = SealedColumn("idempotency_keys", "answer_sealed")
_LEASE = timedelta(seconds=60)
OTHER_BODY = (
    f"This {HEADER} was used for a request with another body. To repeat that request, send its body unchanged; for "
    "another request, send another key."
)


@dataclass(frozen=True, slots=True)
class KeyScope:
    owner_id: str
    method: str
    path: str
    key: str


class Claim:
    """The right of one request to execute: under an idempotency key, or without one."""

    def __init__(self, holder: str | None = None, row_id: str | None = None) -> None:
        self._holder, self._row_id = holder, row_id
        self.is_bound = False

    @classmethod
    def none(cls) -> Self:
        """Return the claim of a request without a key, or of work that no request has asked for."""
        return cls()

    def bind(self, session: Session, subject_id: str) -> None:
        """Tie the record that the current unit makes to the key, if there is one.

        Once the unit is committed, `is_bound` is set: a later failure of the database leaves the outcome unknown.

        Raises: IdempotencyConflict when another request took the claim over: the unit must roll back.
        """
        after_commit(self._mark_bound)
        if self._row_id is not None:
            # Sealed until the response is: who writes to the database cannot put the record of another in its place.
            values = {"subject_id": subject_id, "answer_sealed": _ANSWERS.seal(subject_id, self._row_id)}
            if not update_rows(session, IdempotencyKey, self._is_held, **values):
                raise IdempotencyConflict("Another request with this Idempotency-Key has replaced this one.")

    def store_response(self, status: int, body: bytes) -> None:
        if self._row_id is not None:
            values = {"answer_status": status, "answer_sealed": _ANSWERS.seal(body, self._row_id)}
            with unit_of_work() as session:
                update_rows(session, IdempotencyKey, self._is_held, **values)

    def end_lease(self) -> None:
        """Let the next request under the key be rebuilt from the record without waiting for the lease to expire."""
        if self._row_id is not None:
            with unit_of_work() as session:
                update_rows(session, IdempotencyKey, self._is_held, lease_until=clock.now())

    def release(self) -> None:
        """Release a key under which nothing was recorded; if that fails, its lease expires."""
        if self._row_id is None:
            return
        # A commit with a lost outcome may have recorded something.
        try:
            with unit_of_work() as session:
                delete_rows(session, IdempotencyKey, self._is_held, IdempotencyKey.subject_id.is_(None))
        except SQLAlchemyError:
            # The failure before this one is the client's.
            _log.exception("idempotency_key_not_released")

    def withdraw(self) -> None:
        """Delete a key to which a call was bound that certainly had no effect, so that it may be repeated."""
        if self._row_id is not None:
            with unit_of_work() as session:
                delete_rows(session, IdempotencyKey, self._is_held)

    @property
    def _is_held(self) -> ColumnElement[bool]:
        return and_(IdempotencyKey.id == self._row_id, IdempotencyKey.holder == self._holder)

    def _mark_bound(self) -> None:
        self.is_bound = True


def claim_key(
    scope: KeyScope, content: bytes, *, lifetime: timedelta = RETENTION, conflict: str = OTHER_BODY
) -> Claim | IdempotencyKey:
    """Claim a key for a request with this content, or return it as an earlier request has left it.

    `content` is the canonical form of the body. After `lifetime`, at most the retention period, the key is a new one.

    Raises: IdempotencyConflict while the earlier request is still running, or with `conflict` if it was another one.
    """
    now, row_id, holder = clock.now(), new_id(), new_id()
    # With the owner: the row of another that was moved here by SQL is no answer.
    body = scope.owner_id.encode() + b"\n" + content
    accepted = [each.hex() for each in keyed_digests("idempotency", body, app_state().settings.secret_key_list())]
    claimed = {"holder": holder, "lease_until": now + _LEASE, "created_at": now}
    claimed |= dict.fromkeys(("request_hmac", "body_hmac"), accepted[0])
    with suppress(IntegrityError):
        with unit_of_work() as session:
            session.add(IdempotencyKey(id=row_id, **asdict(scope), **claimed))
            session.flush()
        return Claim(holder, row_id)
    with unit_of_work() as session:
        row = session.scalars(select(IdempotencyKey).filter_by(**asdict(scope)).with_for_update()).one_or_none()
        if row is None:
            raise _in_progress(now, now)
        if row.created_at >= now - lifetime:
            if not any(hmac.compare_digest(row.request_hmac or "", each) for each in accepted):
                raise IdempotencyConflict(conflict)
            if row.answer_status is None and row.lease_until > now:
                raise _in_progress(row.lease_until, now)
            if row.answer_status is not None or row.subject_id is not None:
                return row
        # Abandoned, or too old; the row is locked.
        claimed |= dict.fromkeys(("subject_id", "answer_status", "answer_sealed"))
        update_rows(session, IdempotencyKey, IdempotencyKey.id == row.id, **claimed)
        return Claim(holder, row.id)


def derived_key(content: bytes) -> str:
    """Return the key of a request without one, by what it asks for."""
    return "derived-" + hashlib.sha256(content).hexdigest()


def _in_progress(lease_until: datetime, now: datetime) -> IdempotencyConflict:
    """Return the error of a request that is repeated too early; after the lease, it can be decided."""
    return IdempotencyConflict(
        f"The first request with this {HEADER} is still running.",
        retry_after_seconds=max(1, math.ceil((lease_until - now).total_seconds())),
    )
