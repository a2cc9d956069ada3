"""The periodic sweep and the audit. What is due is read from the database, independent of the queue."""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

import structlog
from rq.timeouts import JobTimeoutException
from sqlalchemy import Engine

from app import authenticated
from app.approvals import service as approvals
from app.audit_log import actors, trail, verification, witness
from app.audit_log.witness import AuditHeadView
from app.catalog import statistics
from app.catalog.payouts import earnings
from app.catalog.payouts import service as payouts
from app.core import clock
from app.credits import accounts
from app.credits import audit as credits_audit
from app.db import leases, partitions
from app.db.leases import lease, once_per_period
from app.db.replica import report_engine
from app.db.unit_of_work import read_only_unit, snapshot, unit_of_work
from app.errors import KeyServiceUnavailable
from app.extensions import db
from app.gateway.pricing import price_updates
from app.identity import grants
from app.jobs import AUDIT_LEASE, JobName
from app.observability import counters
from app.payments import jobs as payments
from app.payments import jobs as payments_audit
from app.platform import keys as platform_keys
from app.platform import personal_data, row_seals
from app.platform.shared_budgets import service as shared_budgets
from app.shopping import maintenance as purchases
from app.spending import audit as spending_audit
from app.state import app_state
from app.trading import exchange_client
from app.usage import audit as usage_audit
from app.usage import retention as usage_retention
from app.usage import service as usage
from app.wallets.core import intents
from app.wallets.deposits import funding
from app.wallets.maintenance import audit as wallets_audit
from app.wallets.transactions import relayed
from workers.context import job

_log = structlog.get_logger(__name__)
_LEASE = timedelta(seconds=60)
_AUDIT_EVERY = timedelta(hours=1)
_AUDIT_DURATION = timedelta(seconds=JobName.AUDIT.timeout_seconds)
_NEWEST_ENTRIES = 1000
_SIGNATURES = timedelta(days=7)
_PRICES_EVERY = timedelta(hours=1)


def audit() -> list[str]:
    """Check the money invariants, the authenticated rows and the end of the audit log; return and log violations.

    While the permit of an upgrade is in force, what the previous version wrote without a MAC gets one first.
    """
    row_seals.seal_permitted()
    violations, head = _violations(report_engine())
    if violations:
        # A replica may not show yet what was written since: the database decides.
        violations, head = _violations(db.engine)
    violations += _unrecorded_signatures()
    if not violations:
        # A head that contradicts the witness is not added to it.
        witness.append(head)
    for violation in violations:
        _log.error("audit_violation", violation=violation)
        counters.AUDIT_VIOLATIONS.inc()
    return violations


def _violations(engine: Engine) -> tuple[list[str], AuditHeadView]:
    with snapshot(engine) as session:
        violations = [
            *credits_audit.check(session),
            *spending_audit.check(session),
            *usage_audit.check(session),
            *shared_budgets.check(session),
            *verification.find_problems(session, newest=_NEWEST_ENTRIES),
            *verification.find_witness_problems(session),
            *authenticated.find_changed(session),
            *statistics.find_wrong_sums(session),
            *earnings.find_problems(session),
            *payments_audit.check(session),
            *wallets_audit.check(session),
        ]
        return violations, trail.get_head(session)


def _unrecorded_signatures() -> list[str]:
    """Return what the signer process signed and nobody recorded; it is asked outside of units."""
    try:
        return intents.find_unrecorded(clock.now() - _SIGNATURES)
    except KeyServiceUnavailable:
        return ["the signer process does not respond, so that its signatures cannot be compared with the movements"]


@job
def audit_hourly() -> None:
    """Audit if the last complete audit is an hour old, then drop old months. A separate job: sweeps need not wait."""
    with once_per_period(_AUDIT_EVERY, AUDIT_LEASE, duration=_AUDIT_DURATION) as due:
        if due:
            audit()
    if due:
        # Afterwards, so that no audit is repeated because of it.
        usage_retention.drop_months(clock.now() - timedelta(days=app_state().settings.retention_days))


@job
def sweep() -> None:
    """Run the periodic steps: expire, charge lapsed holds, prune, retry the faucet, purge keys.

    A step that fails is logged and does not prevent the others. The heartbeat shows that jobs are run, even if nothing
    is due for a long time.
    """
    leases.record()
    with lease("sweep", duration=_LEASE) as acquired:
        if not acquired:
            return
        now = clock.now()
        cutoff = now - timedelta(days=app_state().settings.retention_days)
        steps: dict[str, Callable[[], object]] = {
            "expire_funding": lambda: funding.fail_expired(now),
            "charge_lapsed": usage.charge_lapsed,
            "settle_intents": lambda: intents.settle_abandoned(now),
            "expire_approvals": lambda: approvals.expire_due(now),
            "retry_faucet": lambda: _retry_faucet(now),
            "prune_connections": lambda: _prune_connections(cutoff),
            "rank_services": lambda: statistics.refresh_totals(now),
            "prune_statistics": lambda: statistics.prune_history(now),
            "end_purchases": lambda: purchases.sweep(now),
            "announce_low_credits": accounts.announce_low,
            "announce_budgets": shared_budgets.announce,
            "announce_unhealthy_services": lambda: statistics.announce_unhealthy(now),
            "prune_exchange_budgets": lambda: exchange_client.prune(now),
            # In a bounded number of short units of each kind; the next sweep continues.
            **{f"prune_{name}": partial(personal_data.prune, name, now) for name in personal_data.ENDING},
            "make_partitions": lambda: partitions.make_ahead(now),
            "prune_usage": lambda: usage_retention.prune(cutoff),
            "prune_history": lambda: relayed.prune_queries(cutoff),
            "resume_settlements": payments.check_gas_reserves,
            "pay_sellers": payouts.pay_scheduled,
            "refresh_prices": _refresh_prices,
            # Last, because it queries the chains.
            "purge_keys": lambda: platform_keys.purge_retired_keys(actors.system_actor("sweep"), now=now),
        }
        for name, step in steps.items():
            _run_step(name, step)


def _run_step(name: str, step: Callable[[], object]) -> None:
    try:
        step()
    except JobTimeoutException:
        raise
    except Exception:
        _log.exception("sweep_step_failed", step=name)


def _refresh_prices() -> None:
    if not app_state().settings.gateway_prices_url:
        return
    with once_per_period(_PRICES_EVERY, "prices", duration=_LEASE) as due:
        if due:
            price_updates.refresh()


def _prune_connections(before: datetime) -> None:
    with unit_of_work() as session:
        grants.prune(session, before)


def _retry_faucet(now: datetime) -> None:
    if app_state().ports.faucet is None:
        return
    with read_only_unit() as session:
        request_ids = funding.unpaid_by_faucet(session, now)
    for request_id in request_ids:
        if not app_state().ports.queue.enqueue(JobName.PAY_FROM_FAUCET, request_id):
            funding.pay_from_faucet(request_id)
