"""`Idempotency-Key`: the same request, sent again, gets the first answer and moves nothing a second time.

A claim on the key is a row with a lease. The story binds what it recorded to the claim in its own unit
(`bind`), so after a crash the answer is rebuilt from the record, and a slow request whose lease was taken over
cannot record anything any more. Alone writes `idempotency_keys`.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from flask import Response, g, jsonify, make_response, request
from sqlalchemy import ColumnElement, Index, String, Text, delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import InstrumentedAttribute, Mapped, mapped_column

from app.core import clock, pacing
from app.core.columns import ID, UtcDateTime
from app.core.identifiers import new_id
from app.core.unit_of_work import after_commit, unit_of_work
from app.errors import IdempotencyConflict, InvalidInput, ServiceError
from app.extensions import Model, db
from app.ports import provider
from app.ports.vault import Place
from app.web import failures
from app.web.parsing import body_of

_log = structlog.get_logger(__name__)
View = TypeVar("View", bound=Callable[..., Any])

HEADER = "Idempotency-Key"
KEPT = timedelta(hours=24)
_LEASE = timedelta(seconds=60)
_PER_UNIT = 1000
_UNITS = 10
_VISIBLE_ASCII = re.compile(r"[\x21-\x7e]{1,255}", re.ASCII)


class IdempotencyKey(Model):
    """One key of one owner on one route, what it recorded, and its answer once there is one."""

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
    body_hmac: Mapped[str] = mapped_column(String(64))
    holder: Mapped[str] = mapped_column(ID)
    subject_id: Mapped[str | None] = mapped_column(ID)
    answer_status: Mapped[int | None]
    answer_sealed: Mapped[str | None] = mapped_column(Text)
    lease_until: Mapped[datetime] = mapped_column(UtcDateTime)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)


@dataclass(frozen=True, slots=True)
class _Claim:
    row_id: str
    holder: str


@dataclass(frozen=True, slots=True)
class _Stored:
    row_id: str
    subject_id: str | None
    answer_status: int | None
    answer_sealed: str | None


def _always() -> bool:
    return True


def idempotent(
    *,
    owner: Callable[[], str],
    rebuild: Callable[[str], tuple[int, Any]],
    applies: Callable[[], bool] = _always,
    repeated: Callable[[str], None] | None = None,
) -> Callable[[View], View]:
    """Honour `Idempotency-Key` on a view, unless `applies` says that the request makes nothing.

    `owner` names whose key it is; `rebuild` makes `(status, JSON body)` from the id given to `bind`, for the
    answer that a crash swallowed. `repeated` is told of that id before an answer is given once more; what it
    raises is answered instead.
    """

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # `g` outlives a request that was made inside an open application context.
            g.pop("idempotency_claim", None)
            g.pop("idempotency_bound", None)
            key = request.headers.get(HEADER)
            if key is None or not applies():
                return view(*args, **kwargs)
            if not _VISIBLE_ASCII.fullmatch(key):
                raise InvalidInput.field(HEADER, "must be 1 to 255 visible ASCII characters")
            found = _claim(owner(), key)
            if isinstance(found, _Stored):
                return _replay(found, rebuild, repeated)
            g.idempotency_claim = found
            return _run(view, found, args, kwargs)

        return wrapper  # type: ignore[return-value]

    return decorate


def bind(subject_id: str) -> None:
    """Tie the record that the current unit makes to the request's key; nothing to do without one.

    Raises: IdempotencyConflict when another request took the claim over: the unit must roll back.
    """
    claim: _Claim | None = g.get("idempotency_claim")
    if claim is None:
        return
    done = db.session.execute(
        update(IdempotencyKey)
        .where(IdempotencyKey.id == claim.row_id, IdempotencyKey.holder == claim.holder)
        .values(subject_id=subject_id)
    )
    if done.rowcount != 1:  # type: ignore[attr-defined]
        raise IdempotencyConflict("A repetition of this request has taken its place.")
    after_commit(_remember_bound)


def _remember_bound() -> None:
    g.idempotency_bound = True


def prune(now: datetime, *, per_unit: int = _PER_UNIT, units: int = _UNITS) -> int:
    """Forget keys past their 24 hours, in a bounded number of short units; return how many."""
    old = (
        select(IdempotencyKey.id)
        .where(IdempotencyKey.created_at < now - KEPT)
        .order_by(IdempotencyKey.created_at)
        .limit(per_unit)
    )
    pruned = 0
    for _ in pacing.units(units):
        with unit_of_work() as session:
            gone = session.execute(
                delete(IdempotencyKey)
                .where(IdempotencyKey.id.in_(old.scalar_subquery()))
                .execution_options(synchronize_session=False)
            )
        pruned += int(gone.rowcount)  # type: ignore[attr-defined]
        if gone.rowcount < per_unit:  # type: ignore[attr-defined]
            break
    return pruned


def _run(view: Callable[..., Any], claim: _Claim, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        response = make_response(view(*args, **kwargs))
    except ServiceError as error:
        if not g.get("idempotency_bound"):
            _forget(claim)
            raise
        response = failures.answer(error)
    except Exception:
        if not g.get("idempotency_bound"):
            _forget(claim)
        raise
    try:
        _store(claim, response)
    except Exception:
        # The deed is done and recorded: its answer must go out, and a repetition is answered from the record.
        _log.exception("idempotent_answer_not_stored")
    return response


def _replay(
    stored: _Stored, rebuild: Callable[[str], tuple[int, Any]], repeated: Callable[[str], None] | None
) -> Response:
    if stored.answer_status is not None and stored.answer_sealed is not None:
        body = provider.current().vault.open(stored.answer_sealed, _place(stored.row_id))
        response = Response(body, status=stored.answer_status, mimetype="application/json")
    else:
        status, answer = rebuild(str(stored.subject_id))
        response = jsonify(answer)
        response.status_code = status
    if repeated is not None and stored.subject_id is not None:
        repeated(stored.subject_id)
    response.headers["Idempotent-Replayed"] = "true"
    return response


def _claim(owner_id: str, key: str) -> _Claim | _Stored:
    now, holder, row_id = clock.now(), new_id(), new_id()
    body_hmac, *older = _fingerprints(body_of(request))
    scope = {"owner_id": owner_id, "method": request.method, "path": request.path[:200], "key": key}
    try:
        with unit_of_work() as session:
            session.add(
                IdempotencyKey(
                    id=row_id,
                    **scope,
                    body_hmac=body_hmac,
                    holder=holder,
                    lease_until=now + _LEASE,
                    created_at=now,
                )
            )
            session.flush()
        return _Claim(row_id, holder)
    except IntegrityError:
        pass
    with unit_of_work() as session:
        row = session.scalars(select(IdempotencyKey).filter_by(**scope).with_for_update()).one_or_none()
        if row is None:
            raise _still_running()
        if row.created_at < now - KEPT:
            return _take_over(row, holder=holder, now=now, body_hmac=body_hmac)
        if not any(hmac.compare_digest(row.body_hmac, each) for each in (body_hmac, *older)):
            raise IdempotencyConflict(f"This {HEADER} was used for a request with another body.")
        if row.answer_status is None and row.lease_until > now:
            raise _still_running()
        if row.answer_status is None and row.subject_id is None:
            return _take_over(row, holder=holder, now=now, body_hmac=body_hmac)
        return _Stored(row.id, row.subject_id, row.answer_status, row.answer_sealed)


def _take_over(row: IdempotencyKey, *, holder: str, now: datetime, body_hmac: str) -> _Claim:
    """Become the holder of a claim that was left behind.

    SQLite has no row locks, so the update names all that was read: a claim that moved on meanwhile is left alone.

    Raises: IdempotencyConflict when it did.
    """
    as_read = [
        IdempotencyKey.id == row.id,
        IdempotencyKey.holder == row.holder,
        IdempotencyKey.created_at == row.created_at,
        IdempotencyKey.lease_until == row.lease_until,
        _same(IdempotencyKey.subject_id, row.subject_id),
        _same(IdempotencyKey.answer_status, row.answer_status),
    ]
    won = db.session.execute(
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
    if won.rowcount != 1:  # type: ignore[attr-defined]
        raise _still_running()
    return _Claim(row.id, holder)


def _same(column: InstrumentedAttribute[Any], value: object) -> ColumnElement[bool]:
    return column.is_(None) if value is None else column == value


def _still_running() -> IdempotencyConflict:
    return IdempotencyConflict(
        f"The first request with this {HEADER} is still running.", retry_after_seconds=1
    )


def _store(claim: _Claim, response: Response) -> None:
    sealed = provider.current().vault.seal(response.get_data(), _place(claim.row_id))
    with unit_of_work() as session:
        session.execute(
            update(IdempotencyKey)
            .where(IdempotencyKey.id == claim.row_id, IdempotencyKey.holder == claim.holder)
            .values(answer_status=response.status_code, answer_sealed=sealed)
        )


def _forget(claim: _Claim) -> None:
    with unit_of_work() as session:
        session.execute(
            delete(IdempotencyKey).where(
                IdempotencyKey.id == claim.row_id,
                IdempotencyKey.holder == claim.holder,
                # A commit whose outcome was lost may have recorded something after all.
                IdempotencyKey.subject_id.is_(None),
            )
        )


def _place(row_id: str) -> Place:
    return Place("idempotency_keys", "answer_sealed", row_id)


def _fingerprints(body: bytes) -> list[str]:
    """Return what is kept of a body, under the present secret and those that are still believed."""
    keys = (
        hashlib.sha256(b"idempotency" + secret.encode()) for secret in provider.settings().secret_key_list()
    )
    return [hmac.new(key.digest(), body, hashlib.sha256).hexdigest() for key in keys]
