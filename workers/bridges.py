"""The job that carries bridges on."""

from __future__ import annotations

from datetime import timedelta

from app.core.leases import lease
from app.wallets import bridge_steps
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def step() -> None:
    """Take one step with each bridge that is due; nothing to do while another process does."""
    with lease("bridges", duration=_LEASE) as free:
        if free:
            bridge_steps.step_due()
