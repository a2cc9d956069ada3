"""The sweep and the audit: what is due by time, found in the database, whatever became of the queue."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

import structlog
from rq.timeouts import JobTimeoutException

from app.agents import claims
from app.catalog import audit as catalog_audit
from app.catalog import statistics
from app.core import clock
from app.core.leases import lease, once_in
from app.core.unit_of_work import reading, snapshot, unit_of_work
from app.credits import audit as credits_audit
from app.device import guesses
from app.jobs import JobName
from app.owner import sessions
from app.payments import audit as payments_audit
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
from app.wallets import audit as wallets_audit
from app.wallets import funding
from app.wallets import retention as wallets_retention
from app.web import idempotency
from workers.context import job

_log = structlog.get_logger(__name__)
_LEASE = timedelta(seconds=60)
_AUDIT_EVERY = timedelta(hours=1)
_AUDIT_LEASE = timedelta(seconds=JobName.AUDIT.seconds)
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
            *payments_audit.check(),
            *wallets_audit.check(),
        ]
    for violation in broken:
        _log.error("audit_violation", violation=violation)
    return broken


@job
def audit_hourly() -> None:
    """Audit when the last one that came to its end is an hour old. A job of its own, so no sweep keeps it waiting."""
    with once_in(_AUDIT_EVERY, "audit", duration=_AUDIT_LEASE) as due:
        if due:
            audit()


@job
def sweep() -> None:
    """Do what is due by time: expire, charge lapsed holds, forget, ask the faucet again, purge keys.

    A step that fails is logged, and the others are done: none of them may keep the rest waiting for ever.
    """
    with lease("sweep", duration=_LEASE) as free:
        if not free:
            return
        now = clock.now()
        before = now - timedelta(days=provider.settings().retention_days)
        steps: dict[str, Callable[[], object]] = {
            "expire_funding": lambda: funding.fail_expired(now),
            "charge_lapsed": usage.charge_lapsed,
            "ask_the_faucet": lambda: _ask_the_faucet_again(now),
            "forget_answers": lambda: idempotency.prune(now),
            "forget_claims": lambda: _forget_claims(now),
            "rank_services": lambda: statistics.refresh(now),
            "prune_statistics": lambda: statistics.prune(now),
            "end_purchases": lambda: purchases.sweep(now),
            # What RETENTION_DAYS says, a bounded number of short units of each kind: the next sweep goes on.
            "prune_usage": lambda: usage_retention.prune(before),
            "prune_spending": lambda: spending_retention.prune(before.date()),
            "prune_history": lambda: wallets_retention.prune(before),
            "look_after_payments": payments.look_after,
            # Last, for it asks the chains.
            "purge_keys": lambda: platform_keys.purge_retired_keys(actors.the_service("sweep"), now=now),
        }
        for name, step in steps.items():
            _try(name, step)


def _try(name: str, step: Callable[[], object]) -> None:
    try:
        step()
    except JobTimeoutException:
        raise
    except Exception:
        _log.exception("sweep_step_failed", step=name)


def _forget_claims(now: datetime) -> None:
    with unit_of_work():
        claims.forget_answers(now)
        guesses.prune(now)
        sessions.prune(now)


def _ask_the_faucet_again(now: datetime) -> None:
    if provider.current().faucet is None:
        return
    with reading():
        unpaid = funding.unpaid_in_sandbox(now)
    for request_id in unpaid:
        if not provider.current().queue.put(JobName.PAY_FROM_FAUCET, request_id):
            funding.pay_from_faucet(request_id)
