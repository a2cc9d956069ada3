"""`python -m workers.schedule`: the one ticker. It enqueues what is due, and does it itself while Redis is away.

Two of them at once do no harm: jobs take leases in the database.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable

import structlog

from app import commands
from app.jobs import JobName
from app.ports import provider
from app.ports.errors import Rejected, Unreachable
from app.wallets import custody
from workers import bridges, confirmations, deposits, sweeps
from workers.context import application

_log = structlog.get_logger(__name__)
_SWEEP_SECONDS = 15.0

_INLINE: dict[JobName, Callable[..., None]] = {
    JobName.CONFIRM: confirmations.confirm,
    JobName.STEP_BRIDGES: bridges.step,
    JobName.FIND_DEPOSITS: deposits.find,
    JobName.PAY_FROM_FAUCET: deposits.pay_from_faucet,
    JobName.SWEEP: sweeps.sweep,
    JobName.AUDIT: sweeps.audit_hourly,
}


def tick(*, with_sweep: bool) -> None:
    """Enqueue one round of periodic work; run it here when the queue cannot be reached."""
    due: list[tuple[JobName, tuple[str, ...]]] = []
    for chain in provider.current().chains:
        due += [(JobName.CONFIRM, (chain.value,)), (JobName.FIND_DEPOSITS, (chain.value,))]
    due.append((JobName.STEP_BRIDGES, ()))
    if with_sweep:
        due += [(JobName.SWEEP, ()), (JobName.AUDIT, ())]
    for job, arguments in due:
        if not provider.current().queue.put(job, *arguments):
            _run_here(job, arguments)


def _run_here(job: JobName, arguments: tuple[str, ...]) -> None:
    try:
        _INLINE[job](*arguments)
    except Exception:
        # One bad round must not end the ticker; the next one tries again.
        _log.exception("inline_job_failed", job=job.value)


def _verify_chains() -> None:
    """Say loudly at the start when an endpoint serves another chain than we sign for; the adapters refuse it."""
    for name, chain in provider.current().chains.items():
        try:
            chain.verify_identity()
        except Unreachable:
            _log.warning("chain_unreachable", chain=name)
        except Rejected as error:
            _log.critical("wrong_chain", chain=name, reason=error.reason)


def main() -> None:
    """Tick until told to stop. With `--once`, do one full round in this process and end."""
    app = application()
    stop = threading.Event()
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, lambda *_: stop.set())
    with app.app_context():
        if "--once" in sys.argv[1:]:
            for chain in provider.current().chains:
                _run_here(JobName.CONFIRM, (chain.value,))
                _run_here(JobName.FIND_DEPOSITS, (chain.value,))
            _run_here(JobName.STEP_BRIDGES, ())
            _run_here(JobName.SWEEP, ())
            _run_here(JobName.AUDIT, ())
            return
        custody.assert_network()
        _verify_chains()
        commands.create_bootstrap_master_key()
        interval = float(provider.settings().poll_interval_seconds)
        next_sweep = 0.0
        while not stop.is_set():
            started = time.monotonic()
            with_sweep = started >= next_sweep
            if with_sweep:
                next_sweep = started + _SWEEP_SECONDS
            try:
                tick(with_sweep=with_sweep)
            except Exception:
                _log.exception("tick_failed")
            stop.wait(max(0.0, interval - (time.monotonic() - started)))


if __name__ == "__main__":
    main()
