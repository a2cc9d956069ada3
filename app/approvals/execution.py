"""The execution of approved payments: once, by the function that the request itself would have called.

The unit that records a movement also moves its approval to `executed`, and turns its hold into the movement's. A worker
that dies before that leaves it approved, for the next one; one that dies after it leaves a movement like any other.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from http import HTTPStatus

import structlog
from sqlalchemy import ColumnElement, and_, bindparam, exists, or_, select
from sqlalchemy.orm import Session

from app.approvals.models import APPROVALS, Approval, ApprovalStatus
from app.approvals.schemas import ApprovableMovement, ApprovedRequest
from app.approvals.service import SEALED_REQUESTS
from app.authenticated import seal_of
from app.core import clock, strict_json
from app.core.identifiers import new_id
from app.core.movement_kinds import MovementKind
from app.db.tables import update_rows
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import IdempotencyConflict, ServiceError
from app.idempotency.service import Claim
from app.observability import telemetry
from app.ports.errors import Rejected
from app.spending import accounts
from app.spending import holds as spending_holds
from app.spending.policy import ApprovedPayment
from app.state import app_state

_log = structlog.get_logger(__name__)
_LEASE = timedelta(seconds=120)
_RETRY_AFTER = timedelta(seconds=10)
_PERIOD = timedelta(minutes=15)
_EXPIRED = f"The payment could not be executed within {_PERIOD // timedelta(minutes=1)} minutes; nothing was paid."
_BATCH = 20
_BASIS_POINTS = 10_000
# After these, nothing was recorded and another attempt may succeed.
_RETRIED_STATUSES = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_IS_HELD = Approval.holder == bindparam("by_holder")


class ExecutionClaim(Claim):
    """The right of one worker to execute an approval; binding a record to it ends the approval in the same unit."""

    def __init__(self, approval: Approval, holder: str, *, takes_hold: bool) -> None:
        super().__init__()
        self._approval, self._by, self._takes_hold = approval, holder, takes_hold

    def bind(self, session: Session, subject_id: str) -> None:
        """End the approval as executed. Raises: IdempotencyConflict if another worker has taken it over."""
        after_commit(self._mark_bound)
        moved = APPROVALS.move(
            session, self._approval.id, ApprovalStatus.APPROVED, ApprovalStatus.EXECUTED,
            where=_IS_HELD, parameters={"by_holder": self._by}, subject_id=subject_id,
        )  # fmt: skip
        if not moved:
            raise IdempotencyConflict("This approval has been executed by another worker.")
        if not self._takes_hold:
            # The movement has its own by now, or failed before it needed one.
            spending_holds.release(session, self._approval.id)


def has_due(now: datetime) -> ColumnElement[bool]:
    """Return the condition that an approval waits for its execution."""
    return exists().where(_is_due(now))


def execute_due(kinds: Mapping[MovementKind, ApprovableMovement]) -> None:
    """Execute approved payments that no other worker executes. For a worker."""
    with read_only_unit() as session:
        ready = select(Approval.id).where(_is_due(clock.now())).order_by(Approval.decided_at)
        due = session.scalars(ready.limit(_BATCH)).all()
    for approval_id in due:
        try:
            _execute(approval_id, kinds)
        except Exception:
            # One faulty approval must not block the others; its lease expires.
            _log.exception("approval_execution_failed", approval_id=approval_id)


def _execute(approval_id: str, kinds: Mapping[MovementKind, ApprovableMovement]) -> None:
    holder = new_id()
    row = _take(approval_id, holder)
    if row is None:
        return
    kind = kinds[MovementKind(row.kind)]
    claim = ExecutionClaim(row, holder, takes_hold=kind.takes_hold)
    with telemetry.caused_by(row.request_id):
        try:
            if row.decided_at is None or clock.now() >= row.decided_at + _PERIOD:
                _fail(row, holder, "EXPIRED", _EXPIRED)
                return
            kind.execute(_open(row, kind), claim)
        except ServiceError as error:
            _on_refusal(row, holder, claim, error)
            return
        if not claim.is_bound:
            _fail(row, holder, "NOTHING_TO_PAY", "The service asked for no payment this time. Send the request again.")


def _on_refusal(row: Approval, holder: str, claim: ExecutionClaim, error: ServiceError) -> None:
    if claim.is_bound:
        # It was recorded as failed: the transaction says why.
        _log.info("approved_payment_failed", approval_id=row.id, code=error.code)
        with unit_of_work() as session:
            update_rows(session, Approval, Approval.id == row.id, error={"code": error.code, "message": error.message})
    elif isinstance(error, IdempotencyConflict) or error.status in _RETRIED_STATUSES:
        is_own = Approval.id == row.id, Approval.holder == holder, Approval.status == ApprovalStatus.APPROVED.value
        with unit_of_work() as session:
            accounts.lock_account_of_hold(session, row.id)
            if update_rows(session, Approval, *is_own, lease_until=clock.now() + _RETRY_AFTER):
                spending_holds.restore_hold(session, row.id)  # its hold had become one of a part that was committed
    else:
        _fail(row, holder, error.code, error.message)


def _take(approval_id: str, holder: str) -> Approval | None:
    now = clock.now()
    with unit_of_work() as session:
        is_free = Approval.id == approval_id, _is_due(now)
        taken = update_rows(session, Approval, *is_free, holder=holder, lease_until=now + _LEASE)
        row = session.get(Approval, approval_id) if taken else None
        if row is not None:
            seal_of(Approval).verify(session, row)
        return row


def _open(row: Approval, kind: ApprovableMovement) -> ApprovedRequest:
    """Return the request of an approval as it was approved. Raises: ServiceError if it was altered."""
    try:
        text = SEALED_REQUESTS.open(row.sealed or "", row.id)
    except Rejected:
        text = b""
    if hashlib.sha256(text).hexdigest() != row.request_hash:
        raise ServiceError("The stored request could not be opened; nothing was paid.")
    found = json.loads(text)
    tolerance_bps = app_state().settings.max_price_deviation_bps if kind.follows_market else 0
    most_nanos = int(found["value_nanos"] or 0) * (_BASIS_POINTS + tolerance_bps) // _BASIS_POINTS
    approved = ApprovedPayment(row.id, most_nanos, found["recipient"], found["domain"])
    return ApprovedRequest(row.agent_id, found["wallet_id"], strict_json.parse_json(found["body"].encode()), approved)


def _fail(row: Approval, holder: str, code: str, message: str) -> None:
    """End an approval whose payment was certainly not recorded, and release its hold."""
    with unit_of_work() as session:
        accounts.lock_account_of_hold(session, row.id)
        if APPROVALS.move(
            session, row.id, ApprovalStatus.APPROVED, ApprovalStatus.FAILED,
            where=_IS_HELD, parameters={"by_holder": holder}, error={"code": code, "message": message},
        ):  # fmt: skip
            spending_holds.release(session, row.id)


def _is_due(now: datetime) -> ColumnElement[bool]:
    is_free = or_(Approval.lease_until.is_(None), Approval.lease_until < now)
    return and_(Approval.status == ApprovalStatus.APPROVED.value, is_free)
