"""`python -m workers.schedule`: the scheduler. It enqueues jobs that are due, and runs them itself while Redis is down.

Two schedulers do no harm: jobs take leases in the database.
"""

import pkgutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import ColumnElement, or_, select
from sqlalchemy.exc import SQLAlchemyError

from app.approvals import execution as approved_payments
from app.catalog.payouts import service as payouts
from app.core import clock
from app.core.chains import ChainName
from app.db import leases
from app.db.unit_of_work import read_only_unit
from app.events import deliveries, feed
from app.jobs import AUDIT_LEASE, JobName
from app.payments import jobs as payments
from app.platform import keys as platform_keys
from app.state import app_state
from app.wallets.bridges import advance as bridges
from app.wallets.core import custody
from app.wallets.deposits import scan_states, scanner
from app.wallets.deposits.scan_states import Tier
from app.wallets.transactions import open_transactions
from workers.context import application

_log = structlog.get_logger(__name__)
_SWEEP_SECONDS = 15.0
_Job = tuple[JobName, tuple[str, ...]]


def tick(*, include_sweep: bool, last_scans: dict[ChainName, datetime] | None = None) -> None:
    """Enqueue the jobs that are due; run them here if Redis cannot be reached.

    `last_scans` are the times of the last scans for deposits, which are updated; without it, none counts.
    """
    due_jobs = _due_jobs({} if last_scans is None else last_scans)
    if include_sweep:
        due_jobs.append((JobName.SWEEP, ()))
    for job, arguments in due_jobs:
        if not app_state().ports.queue.enqueue(job, *arguments):
            _run_inline(job, arguments)


def _due_jobs(last_scans: dict[ChainName, datetime]) -> list[_Job]:
    """Return the jobs that have something to do, by one statement; all of them if the database does not answer."""
    conditions = _due_conditions(clock.now())
    scans = {chain: scanner.newest_open(chain) for chain in app_state().ports.chains}
    try:
        with read_only_unit() as session:
            due: Sequence[Any] = session.execute(select(*conditions.values(), *scans.values())).one()
    except SQLAlchemyError as error:
        _log.warning("due_check_failed", error=type(error).__name__)
        return [*conditions, *(_scan_job(chain) for chain in scans)]
    jobs = [job for job, is_due in zip(conditions, due, strict=False) if is_due]
    for chain, newest in zip(scans, due[len(conditions) :], strict=True):
        if scanner.is_due(chain, newest, last_scan=last_scans.get(chain)):
            last_scans[chain] = clock.now()
            jobs.append(_scan_job(chain))
    return jobs


def _scan_job(chain: ChainName, tier: Tier = Tier.OPEN) -> _Job:
    return JobName.FIND_DEPOSITS, (chain.value, tier.value)


def _due_conditions(now: datetime) -> dict[_Job, ColumnElement[bool]]:
    conditions: dict[_Job, ColumnElement[bool]] = {}
    for chain in app_state().ports.chains:
        conditions[JobName.CONFIRM, (chain.value,)] = or_(
            open_transactions.has_due(chain, now), payments.has_open(chain), payouts.has_open(chain)
        )
        for tier in (Tier.ACTIVE, Tier.ALL):
            conditions[_scan_job(chain, tier)] = leases.is_free(scan_states.lease_name(chain, tier), now)
    conditions[JobName.ADVANCE_MOVEMENTS, ()] = bridges.has_due(now)
    conditions[JobName.EXECUTE_APPROVALS, ()] = approved_payments.has_due(now)
    conditions[JobName.DELIVER, ()] = or_(feed.has_new(), deliveries.has_due(now))
    conditions[JobName.AUDIT, ()] = leases.is_free(AUDIT_LEASE, now)
    return conditions


def _run_inline(job: JobName, arguments: tuple[str, ...]) -> None:
    try:
        # Loaded here, as RQ does: what the jobs need takes a tenth of a second, and Redis is seldom lost.
        pkgutil.resolve_name(job.value)(*arguments)
    except Exception:
        # A failed round must not end the scheduler; the next one tries again.
        _log.exception("inline_job_failed", job=job.value)


def _verify_chains() -> None:
    """Log at the start each endpoint that is not used, one of another chain as an error."""
    for name, chain in app_state().ports.chains.items():
        for endpoint in chain.diagnose().endpoints:
            if endpoint.problem is not None:
                log = _log.critical if endpoint.problem == "wrong_chain" else _log.warning
                log("chain_endpoint_unusable", chain=name, endpoint=endpoint.number, reason=endpoint.problem)


def main() -> None:
    """Run rounds until a signal stops the process. With `--once`, run one full round in this process and end."""
    app = application()
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    with app.app_context():
        if "--once" in sys.argv[1:]:
            for chain in app_state().ports.chains:
                _run_inline(JobName.CONFIRM, (chain.value,))
                _run_inline(*_scan_job(chain, Tier.ALL))
            _run_inline(JobName.ADVANCE_MOVEMENTS, ())
            _run_inline(JobName.EXECUTE_APPROVALS, ())
            _run_inline(JobName.SWEEP, ())
            _run_inline(JobName.AUDIT, ())
            return
        custody.assert_network()
        _verify_chains()
        platform_keys.create_bootstrap_master_key()
        interval = float(app_state().settings.poll_interval_seconds)
        next_sweep = 0.0
        last_scans: dict[ChainName, datetime] = {}
        while not stop.is_set():
            started = time.monotonic()
            include_sweep = started >= next_sweep
            if include_sweep:
                next_sweep = started + _SWEEP_SECONDS
            try:
                tick(include_sweep=include_sweep, last_scans=last_scans)
            except Exception:
                _log.exception("tick_failed")
            stop.wait(max(0.0, interval - (time.monotonic() - started)))


if __name__ == "__main__":
    main()
