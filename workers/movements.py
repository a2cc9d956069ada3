"""The job that advances movements of several transactions."""

from datetime import timedelta

from app.db.leases import lease
from app.movements import KINDS
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def advance() -> None:
    """Advance each movement that is due by one step, unless another process does so for its kind."""
    for steps in (kind.steps for kind in KINDS.values() if kind.steps):
        with lease(steps.lease, duration=_LEASE) as acquired:
            if acquired:
                steps.advance_due()
