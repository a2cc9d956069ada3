"""The job that advances movements of several transactions."""

from datetime import timedelta

from app.db.leases import lease
from app.wallets.bridges import advance as bridges
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def advance() -> None:
    """Advance each bridge that is due by one step, unless another process does so."""
    with lease("bridges", duration=_LEASE) as acquired:
        if acquired:
            bridges.advance_due()
