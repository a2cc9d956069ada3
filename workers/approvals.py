"""The job that executes approved payments."""

from __future__ import annotations

from app.approvals import execution
from app.approvals.lifecycle import ApprovalKind
from app.buying import routes as buying
from app.db import heartbeats
from app.payments import routes as topups
from app.shopping import routes as shopping
from app.wallets.api import movement_routes
from workers.context import job


@job
def execute() -> None:
    """Execute approved payments, each by the function that its request would have called."""
    actions = {
        **movement_routes.APPROVED_ACTIONS,
        ApprovalKind.TOPUP: topups.execute_approved,
        ApprovalKind.X402: buying.execute_approved,
        ApprovalKind.PURCHASE: shopping.execute_approved,
    }
    execution.execute_due(actions)
    heartbeats.record()
