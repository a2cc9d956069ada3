"""The use cases of approvals: request, read, cancel, decide, expire. `execution` executes what was approved.

The value is held from the request on. Units lock the wallet's account before the approval. Every route that moves
money answers 202 by the same functions when the owner has to approve.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, TypeVar
from urllib.parse import urlsplit

import structlog
from flask import Response, jsonify
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.approvals.models import APPROVALS, OPEN_STATUSES, Approval, ApprovalStatus
from app.approvals.schemas import ApprovableMovement, AwaitingApproval
from app.authenticated import SealedColumn, seal_of
from app.core import clock, identifiers
from app.core.money import usd_string
from app.core.movement_kinds import MovementKind
from app.core.pagination import Page, PageRequest
from app.db.tables import count, page_of
from app.db.unit_of_work import after_commit, read_only_unit, unit_of_work
from app.errors import ApprovalRequired, InvalidInput, LimitReached, NotFound, ServiceError
from app.events import delivery_log
from app.events.outbox import EventType
from app.idempotency.service import Claim
from app.jobs import JobName
from app.observability import telemetry
from app.spending import accounts, approval_rules
from app.spending import holds as spending_holds
from app.spending.policy import ApprovedPayment, SpendingRequest
from app.state import app_state
from app.web.schemas import canonical_json, validated_fields

_log = structlog.get_logger(__name__)

MAX_OPEN_APPROVALS = 50
MAX_SEALED_BYTES = 2**20
_LIFETIME = timedelta(hours=24)
_NOTICE_AFTER = timedelta(minutes=1)
_MAX_COUNTED = 1000
SEALED_REQUESTS = SealedColumn("approvals", "sealed")
_IS_AWAITING = Approval.status == ApprovalStatus.AWAITING.value
_OPEN = [status.value for status in OPEN_STATUSES]
_EXPIRE_BATCH = 200


class OwnerMethod(StrEnum):
    """How an owner was authenticated for a decision."""

    SESSION = "session"
    OWNER_KEY = "owner_key"
    PASSKEY = "passkey"


def request_approval(
    kind: MovementKind,
    needed: ApprovalRequired,
    *,
    body: bytes,
    facts: Mapping[str, str],
    note: str | None,
    claim: Claim,
) -> Approval:
    """Hold the value of a payment and store its request, the body in canonical form, for the owner's decision.

    Raises: the 403 errors of refused limits; LimitReached with too many open approvals.
    """
    spending: SpendingRequest = needed.spending_request
    approval_id, now = identifiers.new_id(), clock.now()
    expires_at = now + _LIFETIME
    shown: dict[str, Any] = {
        "id": approval_id, "wallet_id": needed.wallet_id, "kind": kind.value, "recipient": spending.recipient,
        "domain": spending.domain, "facts": dict(facts), "note": note,
    }  # fmt: skip
    request = {"value_nanos": spending.value_nanos, "body": body.decode(), "expires_at": clock.isoformat(expires_at)}
    sealed_text = json.dumps({**shown, **request, "salt": secrets.token_hex(16)}, sort_keys=True)
    row = Approval(
        **shown, agent_id=needed.agent_id, reason=needed.reason, value_nanos=spending.value_nanos or 0,
        request_hash=hashlib.sha256(sealed_text.encode()).hexdigest(),
        sealed=SEALED_REQUESTS.seal(sealed_text, approval_id),
        request_id=telemetry.originating_request_id(), created_at=now, expires_at=expires_at,
    )  # fmt: skip
    with unit_of_work() as session:
        spending_holds.hold(session, needed.wallet_id, spending, reference=approval_id, is_owner_asked=True)
        is_open = (Approval.wallet_id == needed.wallet_id) & Approval.status.in_(_OPEN)
        if count(session, Approval, is_open) >= MAX_OPEN_APPROVALS:
            raise LimitReached(
                f"{MAX_OPEN_APPROVALS} payments of this wallet already wait for its owner. Cancel some, or wait.",
                details={"approvals": MAX_OPEN_APPROVALS},
            )
        _assert_storable(session, row)
        APPROVALS.add(session, row, ApprovalStatus.AWAITING)
        claim.bind(session, approval_id)
    return get(approval_id)


def _assert_storable(session: Session, row: Approval) -> None:
    """Bound what the open requests of one agent store. Raises: LimitReached."""
    is_open = (Approval.agent_id == row.agent_id) & Approval.status.in_(_OPEN)
    stored = session.scalar(select(func.sum(func.length(Approval.sealed))).where(is_open)) or 0
    if int(stored) + len(row.sealed or "") > MAX_SEALED_BYTES:
        raise LimitReached(
            f"This agent's requests that wait for its owner use {stored} of {MAX_SEALED_BYTES} bytes, and this one "
            "does not fit. Send a smaller body, or cancel some.",
            details={"bytes": int(stored), "limit_bytes": MAX_SEALED_BYTES},
        )


def get(approval_id: str, *, agent_id: str | None = None) -> Approval:
    """Return an approval. Raises: NotFound, including for malformed ids and those of other agents."""
    found = find(approval_id)
    if found is None or (agent_id is not None and found.agent_id != agent_id):
        raise NotFound("No approval with this id belongs to this key.")
    return found


def find(approval_id: str) -> Approval | None:
    canonical = identifiers.parse_id(approval_id)
    with read_only_unit() as session:
        row = session.get(Approval, canonical) if canonical else None
        _prepare(session, [row] if row is not None else [])
        return row


def list_of(page: PageRequest, **values: str | None) -> Page[Approval]:
    """Return a page of the approvals with these values of columns, newest first; None means any."""
    with read_only_unit() as session:
        found: Page[Approval] = page_of(session, Approval, page, newest_first=True, **values)
        _prepare(session, found.items)
        return found


def cancel(approval: Approval) -> Approval:
    """Cancel an approval that its owner has not decided; another one is returned as it is."""
    with unit_of_work() as session:
        _end(session, approval, ApprovalStatus.CANCELLED)
    return get(approval.id)


def decide(
    session: Session,
    approval: Approval,
    *,
    is_approved: bool,
    method: OwnerMethod,
    week_nanos: int = 0,
    answer: str | None = None,
) -> bool:
    """Store the owner's decision; return whether it took effect, which it does once and only before the expiry.

    `week_nanos` may then be paid to the same recipient, or else at the same domain, per week without asking again.
    The caller has authenticated the owner of this agent, and records the decision in the audit log in this unit.

    Raises: ValueError for an approval on a session alone: a bug.
    """
    # A session alone may only refuse.
    if is_approved and method is OwnerMethod.SESSION:
        raise ValueError("a session alone does not approve a payment")
    if clock.now() >= approval.expires_at and _end(session, approval, ApprovalStatus.EXPIRED):
        return False
    decided: dict[str, Any] = {"decided_at": clock.now(), "decided_by": method.value, "answer": answer}
    if not is_approved:
        return _end(session, approval, ApprovalStatus.REJECTED, **decided)
    accounts.lock_account_of_hold(session, approval.id)
    if not APPROVALS.move(session, approval.id, ApprovalStatus.AWAITING, ApprovalStatus.APPROVED, **decided):
        return False
    if week_nanos:
        permitted = approval_rules.payees_of(SpendingRequest(None, approval.recipient, domain=approval.domain))[:1]
        accounts.approve_payees(session, approval.wallet_id, permitted, week_nanos=week_nanos)
    after_commit(lambda: app_state().ports.queue.enqueue(JobName.EXECUTE_APPROVALS))
    return True


def expire_if_due(approval: Approval) -> None:
    if approval.status == ApprovalStatus.AWAITING and clock.now() >= approval.expires_at:
        with unit_of_work() as session:
            _end(session, approval, ApprovalStatus.EXPIRED)


def expire_due(now: datetime) -> int:
    """Expire approvals that were not decided in time and release what they hold; return how many."""
    with read_only_unit() as session:
        late = select(Approval).where(_IS_AWAITING, Approval.expires_at <= now).order_by(Approval.expires_at)
        due = session.scalars(late.limit(_EXPIRE_BATCH)).all()
        _prepare(session, due)
    expired = 0
    for each in due:
        with unit_of_work() as session:
            expired += _end(session, each, ApprovalStatus.EXPIRED)
    return expired


def count_unnoticed(session: Session, now: datetime) -> dict[str, int]:
    """Return how many approvals wait, and of how many, after a minute, no notice has reached the owner."""
    oldest = select(Approval.id).where(_IS_AWAITING, Approval.created_at < now - _NOTICE_AFTER)
    waiting = session.scalars(oldest.order_by(Approval.created_at).limit(_MAX_COUNTED)).all()
    found = delivery_log.to_owners(session, EventType.APPROVAL_REQUESTED, waiting) if waiting else {}
    reached = [each for each in waiting if any(one.delivered_at for one in found.get(each, ()))]
    return {"all": count(session, Approval, _IS_AWAITING), "unnotified": len(waiting) - len(reached)}


def count_awaiting(session: Session, agent_id: str) -> int:
    return count(session, Approval, Approval.agent_id == agent_id, _IS_AWAITING)


def _end(session: Session, approval: Approval, target: ApprovalStatus, **changes: Any) -> bool:
    """End an undecided approval and release its hold, both or neither; return whether this call did it."""
    accounts.lock_account_of_hold(session, approval.id)
    if not APPROVALS.move(session, approval.id, ApprovalStatus.AWAITING, target, **changes):
        return False
    spending_holds.release(session, approval.id)
    return True


def _prepare(session: Session, rows: Sequence[Approval]) -> None:
    """Verify what the owner decides on, and add its notices. Raises: RowChanged."""
    for row in rows:
        seal_of(Approval).verify(session, row)
    found = delivery_log.to_owners(session, EventType.APPROVAL_REQUESTED, [row.id for row in rows]) if rows else {}
    for row in rows:
        row.notices = found.get(row.id, ())


ResultT = TypeVar("ResultT")

ACCEPTED = 202
DESCRIPTION = "The owner has to approve it: its value is held, and nothing is paid yet."
# The fields of validated bodies that the owner is shown; a new one is not shown until it is listed.
_FACTS = (
    "chain", "source_chain", "destination_chain", "to", "amount", "currency", "token", "input_token", "output_token",
    "slippage_bps", "method", "url", "quantity", "coupon_code", "delivery_method",
)  # fmt: skip
_USD_FACTS = ("max_amount_usd", "max_total_usd")
_MAX_FACT = 300
_CERTAIN_REASONS = frozenset({"insufficient_funds", "insufficient_gas"})
# Prices move between two readings.
_MARGIN = 2
_MESSAGES: Mapping[ApprovalStatus, str] = {
    ApprovalStatus.AWAITING: "The owner has to approve this payment. Its value is held; nothing is paid yet. Read "
    "GET /v1/approvals/{id} with `Prefer: wait=25`.",
    ApprovalStatus.APPROVED: "The owner approved this payment; it is being executed.",
    ApprovalStatus.EXECUTED: "The owner approved this payment, and it was executed. Read its transaction.",
    ApprovalStatus.REJECTED: "The owner refused this payment; nothing was paid.",
    ApprovalStatus.EXPIRED: "The owner did not decide in time; nothing was paid.",
    ApprovalStatus.CANCELLED: "This request was cancelled; nothing was paid.",
    ApprovalStatus.FAILED: "The owner approved this payment, but its execution was refused; nothing was paid.",
}


def or_ask(
    kind: ApprovableMovement,
    pay: Callable[[], ResultT],
    *,
    body: Mapping[str, Any],
    claim: Claim,
    try_out: Callable[[ApprovedPayment], object] | None = None,
) -> ResultT | Response:
    """Return the result of a payment, or the answer 202 if the owner has to approve it.

    `body` is what its schema has loaded of the current request: that alone is stored and executed later. `try_out`
    checks without signing what would be paid if approved: the owner is not asked for what the wallet cannot pay.

    Raises: what `pay` raises; what `try_out` raises, if an approval would not change it; LimitReached.
    """
    try:
        return pay()
    except ApprovalRequired as needed:
        if try_out is not None:
            _try_out(try_out, needed.spending_request)
        stored, note = canonical_json(validated_fields(kind.body, body)), body.get("approval_note")
        asked = request_approval(kind.name, needed, body=stored, facts=_facts_of(body), note=note, claim=claim)
        return awaiting_response(asked)


def _try_out(try_out: Callable[[ApprovedPayment], object], asked: SpendingRequest) -> None:
    most_nanos = (asked.value_nanos or 0) * _MARGIN
    try:
        try_out(ApprovedPayment("", most_nanos, asked.recipient, asked.domain))
    except ServiceError as refusal:
        # A chain that cannot be read now may be readable when the owner decides, and a price may change.
        if refusal.details.get("reason") in _CERTAIN_REASONS or isinstance(refusal, InvalidInput):
            raise


def rebuilt(subject_id: str, rebuild: Callable[[str], Any]) -> Any:
    """Return the answer to a repeated request: of its approval, if it needed one, else what `rebuild` returns."""
    approval = find(subject_id)
    return rebuild(subject_id) if approval is None else awaiting_response(approval)


def awaiting_response(approval: Approval) -> Response:
    status = "awaiting_approval" if approval.status == ApprovalStatus.AWAITING else approval.status
    values = {"status": status, "message": _MESSAGES[ApprovalStatus(approval.status)], "approval": approval}
    response = jsonify(AwaitingApproval().dump(values))
    response.status_code = ACCEPTED
    response.headers["Location"] = f"/v1/approvals/{approval.id}"
    return response


def _facts_of(body: Mapping[str, Any]) -> dict[str, str]:
    facts = {name: str(body[name]) for name in _FACTS if body.get(name) is not None}
    if "url" in facts:
        # A query may hold a key of the agent.
        facts["url"] = urlsplit(facts["url"])._replace(query="", fragment="").geturl()
    facts |= {name: f"{usd_string(body[name])} USD" for name in _USD_FACTS if body.get(name) is not None}
    return {name: value[:_MAX_FACT] for name, value in facts.items()}
