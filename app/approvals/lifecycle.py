"""The state machine of approvals."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import structlog

from app.approvals.models import Approval
from app.authenticated import AuthenticatedStateMachine
from app.core import clock
from app.core.state_machine import Transitions


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
)
