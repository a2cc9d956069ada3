"""The state machine of approvals."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import structlog
from sqlalchemy.orm import Session

from app.approvals.models import Approval, page_url
from app.authenticated import AuthenticatedStateMachine
from app.core import clock
from app.core.money import usd_string
from app.core.state_machine import Transitions
from app.events import outbox
from app.events.types import EventType


class ApprovalStatus(StrEnum):
    """The states of an approval, as in the API."""

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
    Transitions(
        initial={ApprovalStatus.AWAITING},
        permitted={
            ApprovalStatus.AWAITING: {
                ApprovalStatus.APPROVED,
                ApprovalStatus.REJECTED,
                ApprovalStatus.EXPIRED,
                ApprovalStatus.CANCELLED,
            },
            # In the unit that records the movement; or it was refused, and certainly nothing happened.
            ApprovalStatus.APPROVED: {ApprovalStatus.EXECUTED, ApprovalStatus.FAILED},
        },
    ),
    logger=structlog.get_logger(__name__),
    values=_values,
    announce=_announce,
    announced=(
        Approval.id, Approval.agent_id, Approval.wallet_id, Approval.kind, Approval.reason, Approval.value_nanos,
        Approval.recipient, Approval.domain, Approval.request_hash, Approval.expires_at, Approval.subject_id,
        Approval.error, Approval.answer,
    ),
)  # fmt: skip
