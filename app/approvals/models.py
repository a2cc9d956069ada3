"""The table of approvals, and its state machine."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy import JSON, BigInteger, CheckConstraint, Index, String, Text
from sqlalchemy.orm import Mapped, Session, mapped_column

from app.authenticated import Authenticated, AuthenticatedStateMachine
from app.core import clock
from app.core.money import usd_string
from app.core.movement_kinds import MovementKind
from app.db.tables import ID, UtcDateTime, partial_index
from app.events import outbox
from app.events.delivery_log import OwnerNotice
from app.events.outbox import EventType
from app.extensions import Model
from app.state import app_state


def page_url(agent_id: str, approval_id: str) -> str:
    return f"{app_state().settings.public_url}/owner/agents/{agent_id}/approvals/{approval_id}"


class Approval(Authenticated, Model):
    """A payment that an agent requested and its owner decides on; its id is the reference of its hold."""

    __tablename__ = "approvals"
    __allow_unmapped__ = True
    not_authenticated = frozenset(
        {"sealed", "answer", "subject_id", "error", "holder", "lease_until", "request_id", "created_at", "finished_at"}
    )
    __table_args__ = (
        Index("ix_approvals_agent_id", "agent_id", "created_at", "id"),
        Index("ix_approvals_created_at", "created_at", "id"),
        partial_index("ix_approvals_open", "wallet_id", "expires_at", where="status IN ('awaiting', 'approved')"),
        CheckConstraint("value_nanos >= 0", name="ck_approvals_value"),
        CheckConstraint(
            "status IN ('awaiting', 'approved', 'executed', 'rejected', 'expired', 'cancelled', 'failed')",
            name="ck_approvals_status",
        ),
    )

    id: Mapped[str] = mapped_column(ID, primary_key=True)
    agent_id: Mapped[str] = mapped_column(ID)
    wallet_id: Mapped[str] = mapped_column(ID)
    kind: Mapped[str] = mapped_column(String(16))
    status: Mapped[str] = mapped_column(String(10))
    reason: Mapped[str] = mapped_column(String(40))
    value_nanos: Mapped[int] = mapped_column(BigInteger)
    recipient: Mapped[str | None] = mapped_column(String(64))
    domain: Mapped[str | None] = mapped_column(String(253))
    facts: Mapped[dict[str, str]] = mapped_column(JSON)
    # The agent's own words.
    note: Mapped[str | None] = mapped_column(Text)
    # SHA-256 of what is sealed: the request, its facts, and a salt, since a request may hold a password.
    request_hash: Mapped[str] = mapped_column(String(64))
    sealed: Mapped[str | None] = mapped_column(Text)
    # The owner's words, and how the owner was authenticated.
    answer: Mapped[str | None] = mapped_column(Text)
    decided_by: Mapped[str | None] = mapped_column(String(40))
    # The movement or purchase that was recorded.
    subject_id: Mapped[str | None] = mapped_column(ID)
    error: Mapped[dict[str, Any] | None] = mapped_column(JSON)
    holder: Mapped[str | None] = mapped_column(ID)
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    request_id: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime)
    decided_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    finished_at: Mapped[datetime | None] = mapped_column(UtcDateTime)

    notices: Sequence[OwnerNotice] = ()
    """The notices of its request, if it was read to be shown."""

    @property
    def is_open(self) -> bool:
        """Return whether its status will still change."""
        return self.finished_at is None

    @property
    def url(self) -> str:
        return page_url(self.agent_id, self.id)

    @property
    def notified(self) -> bool:
        """Return whether a notice of the request has reached the owner."""
        return any(each.delivered_at is not None for each in self.notices)

    @property
    def transaction_id(self) -> str | None:
        """Return the movement that was recorded, if it is one."""
        return None if self.kind == MovementKind.PURCHASE else self.subject_id

    @property
    def purchase_id(self) -> str | None:
        return self.subject_id if self.kind == MovementKind.PURCHASE else None


class ApprovalStatus(StrEnum):
    AWAITING = "awaiting"
    APPROVED = "approved"
    EXECUTED = "executed"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    FAILED = "failed"


OPEN_STATUSES = frozenset({ApprovalStatus.AWAITING, ApprovalStatus.APPROVED})
"""The states in which the value is held and nothing is recorded yet."""


def _values(status: ApprovalStatus, _reason: str | None) -> dict[str, Any]:
    # The request is not needed after the end, and may hold a password.
    return {} if status in OPEN_STATUSES else {"sealed": None, "finished_at": clock.now()}


def _announce(session: Session, row: Any, status: ApprovalStatus, _reason: str | None) -> None:
    """Record the event of a status, without the agent's own words."""
    data = {
        "approval_id": row.id, "wallet_id": row.wallet_id, "kind": row.kind, "status": status.value,
        "reason": row.reason, "value_usd": usd_string(row.value_nanos), "recipient": row.recipient,
        "domain": row.domain, "request_hash": row.request_hash, "url": page_url(row.agent_id, row.id),
        "expires_at": clock.isoformat(row.expires_at),
    }  # fmt: skip
    if status is ApprovalStatus.EXECUTED:
        data["subject_id"] = row.subject_id
    elif status is ApprovalStatus.FAILED:
        data["error"] = row.error["code"]
    elif status not in OPEN_STATUSES:
        data["answer"] = row.answer
    name = "requested" if status is ApprovalStatus.AWAITING else status.value
    outbox.record(session, EventType(f"approval.{name}"), agent_id=row.agent_id, object_id=row.id, data=data)


APPROVALS = AuthenticatedStateMachine(
    Approval.status,
    initial={ApprovalStatus.AWAITING},
    permitted={
        ApprovalStatus.AWAITING: {
            ApprovalStatus.APPROVED, ApprovalStatus.REJECTED, ApprovalStatus.EXPIRED, ApprovalStatus.CANCELLED,
        },
        # In the unit that records the movement; or it was refused, and certainly nothing happened.
        ApprovalStatus.APPROVED: {ApprovalStatus.EXECUTED, ApprovalStatus.FAILED},
    },
    logger=structlog.get_logger(__name__),
    values=_values,
    announce=_announce,
    announced=(
        Approval.id, Approval.agent_id, Approval.wallet_id, Approval.kind, Approval.reason, Approval.value_nanos,
        Approval.recipient, Approval.domain, Approval.request_hash, Approval.expires_at, Approval.subject_id,
        Approval.error, Approval.answer,
    ),
)  # fmt: skip
