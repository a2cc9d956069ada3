"""The job that advances bridges."""

from __future__ import annotations

from datetime import timedelta

from app.db.leases import lease
from app.wallets.bridges import advance as bridge_steps
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def step() -> None:
    """Advance each bridge that is due by one step; do nothing while another process holds the lease."""
    with lease("bridges", duration=_LEASE) as acquired:
        if acquired:
            bridge_steps.advance_due()
