"""The sweep: what is due by time, found in the database, whatever became of the queue."""

from __future__ import annotations

from datetime import timedelta

from app.core import clock
from app.core.leases import lease
from app.core.unit_of_work import reading, unit_of_work
from app.jobs import JobName
from app.ports import provider
from app.wallets import funding
from app.web import idempotency
from workers.context import job

_LEASE = timedelta(seconds=60)


@job
def sweep() -> None:
    """Expire funding requests, ask the faucet again, forget old idempotency keys."""
    with lease("sweep", duration=_LEASE) as free:
        if not free:
            return
        now = clock.now()
        funding.fail_expired(now)
        with unit_of_work():
            idempotency.prune(now)
        if provider.current().faucet is None:
            return
        with reading():
            unpaid = funding.unpaid_in_sandbox(now)
        for request_id in unpaid:
            provider.current().queue.put(JobName.PAY_FROM_FAUCET, request_id)
