"""Events of approvals, recorded in the unit that changes the status."""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy.orm import Session

from app.approvals.lifecycle import ApprovalStatus
from app.approvals.models import Approval
from app.core import clock
from app.core.money import usd_string
from app.events import outbox
from app.events.types import EventType

_TYPES: Mapping[ApprovalStatus, EventType] = {
    ApprovalStatus.AWAITING: EventType.APPROVAL_REQUESTED,
    ApprovalStatus.APPROVED: EventType.APPROVAL_APPROVED,
    ApprovalStatus.EXECUTED: EventType.APPROVAL_EXECUTED,
    ApprovalStatus.REJECTED: EventType.APPROVAL_REJECTED,
    ApprovalStatus.EXPIRED: EventType.APPROVAL_EXPIRED,
    ApprovalStatus.CANCELLED: EventType.APPROVAL_CANCELLED,
    ApprovalStatus.FAILED: EventType.APPROVAL_FAILED,
}


def announce(session: Session, row: Approval, status: ApprovalStatus, **more: str | None) -> None:
    """Record the event of a status of an approval, without the agent's own words."""
    data = {
        "approval_id": row.id, "wallet_id": row.wallet_id, "kind": row.kind, "status": status.value,
        "reason": row.reason, "value_usd": usd_string(row.value_nanos), "recipient": row.recipient,
        "domain": row.domain, "request_hash": row.request_hash, "url": row.url,
        "expires_at": clock.isoformat(row.expires_at), **more,
    }  # fmt: skip
    outbox.record(session, _TYPES[status], agent_id=row.agent_id, object_id=row.id, data=data)
