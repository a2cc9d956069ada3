"""The job that executes approved payments."""

from app.approvals import execution
from app.db import leases
from app.movements import KINDS
from workers.context import job


@job
def execute() -> None:
    """Execute approved payments, each by the function that its request would have called."""
    execution.execute_due(KINDS)
    leases.record()
