"""The sweep: what is due by time, found in the database, whatever became of the queue."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog

from app.agents import claims
from app.catalog import audit as catalog_audit
from app.catalog import statistics
from app.core import clock
from app.core.leases import first_in, lease
from app.core.unit_of_work import reading, snapshot, unit_of_work
from app.credits import audit as credits_audit
from app.device import guesses
from app.jobs import JobName
from app.payments import upkeep as payments
from app.platform import actors, verification
from app.platform import keys as platform_keys
from app.ports import provider
from app.shopping import sweeping as purchases
from app.spending import audit as spending_audit
from app.spending import retention as spending_retention
from app.usage import audit as usage_audit
from app.usage import retention as usage_retention
from app.usage import service as usage
from app.wallets import funding
from app.wallets import retention as wallets_retention
from app.web import idempotency
from workers.context import job

_log = structlog.get_logger(__name__)
_LEASE = timedelta(seconds=60)
_AUDIT_EVERY = timedelta(hours=1)
_NEWEST_ENTRIES = 1000


def audit() -> list[str]:
    """Prove the money invariants of the whole database, and the trail's end; return and log what does not hold."""
    with snapshot():
        broken = [
            *credits_audit.check(),
            *spending_audit.check(),
            *usage_audit.check(),
            *verification.check(newest=_NEWEST_ENTRIES),
            *catalog_audit.check(),
        ]
    for violation in broken:
        _log.error("audit_violation", violation=violation)
    return broken


@job
def sweep() -> None:
    """Do what is due by time: expire, charge lapsed holds, forget, audit hourly, ask the faucet again, purge keys."""
    with lease("sweep", duration=_LEASE) as free:
        if not free:
            return
        now = clock.now()
        funding.fail_expired(now)
        usage.charge_lapsed()
        idempotency.prune(now)
        statistics.refresh(now)
        statistics.prune(now)
        purchases.sweep(now)
        with unit_of_work():
            claims.forget_answers(now)
            guesses.prune(now)
        _forget_what_is_old(now)
        if first_in("audit", period=_AUDIT_EVERY):
            audit()
        _ask_the_faucet_again(now)
        payments.supply()
        # Last, for it asks the chains.
        platform_keys.purge_retired_keys(actors.the_service("sweep"), now=now)


def _forget_what_is_old(now: datetime) -> None:
    """Prune what RETENTION_DAYS says, a bounded number of short units of each kind: the next sweep goes on."""
    before = now - timedelta(days=provider.settings().retention_days)
    usage_retention.prune(before)
    spending_retention.prune(before.date())
    wallets_retention.prune(before)


def _ask_the_faucet_again(now: datetime) -> None:
    if provider.current().faucet is None:
        return
    with reading():
        unpaid = funding.unpaid_in_sandbox(now)
    for request_id in unpaid:
        if not provider.current().queue.put(JobName.PAY_FROM_FAUCET, request_id):
            funding.pay_from_faucet(request_id)
