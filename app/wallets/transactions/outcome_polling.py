"""Waiting for outcomes in web requests: all waiting requests of a process share their RPC calls.

One thread per chain polls for all requests that are due. The thread pool limits how many may wait; without a permit
the response is `pending` immediately, and the workers settle.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

import structlog

from app.core.chains import ChainName
from app.ports.chain import Chain, TransactionOutcome, TransactionQuery
from app.ports.errors import PortError
from app.state import app_state
from app.wallets.core import lifecycle
from app.wallets.transactions import settlement
from server.pool import ResourceUse

_log = structlog.get_logger(__name__)
_MIN_INTERVAL_SECONDS, _MAX_INTERVAL_SECONDS = 0.05, 1.0
_POLLS_PER_BLOCK = 4


@dataclass(slots=True)
class _Waiter:
    query: TransactionQuery
    due: float
    interval: float
    outcome: TransactionOutcome | None = None


class OutcomePoller:
    """The requests of one process that wait for outcomes on one chain, and the thread that polls for them."""

    def __init__(self, chain: Chain, *, confirmations: int) -> None:
        self._chain = chain
        self._confirmations = confirmations
        self._pause = chain.block_time.total_seconds() / _POLLS_PER_BLOCK
        self._changed = threading.Condition()
        # By identity: several requests may wait for one movement.
        self._waiters: dict[int, _Waiter] = {}
        self._polling = False
        # The thread starts with the first poll, so that a server may fork before.
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"outcomes-{chain.name}")

    def wait(self, query: TransactionQuery, *, seconds: float) -> TransactionOutcome | None:
        deadline = time.monotonic() + seconds
        interval = max(_MIN_INTERVAL_SECONDS, self._pause)
        waiter = _Waiter(query, due=time.monotonic() + self._pause, interval=interval)
        with self._changed:
            self._waiters[id(waiter)] = waiter
            try:
                while waiter.outcome is None and (now := time.monotonic()) < deadline:
                    if not self._polling and waiter.due <= now:
                        due = [w for w in self._waiters.values() if w.due <= now + interval / 2]
                        self._polling = True
                        self._executor.submit(self._poll, due)
                    wake_at = deadline if self._polling else min(deadline, waiter.due)
                    self._changed.wait(wake_at - now)
                return waiter.outcome
            finally:
                self._waiters.pop(id(waiter), None)
                # Wake another waiter that is due: this one no longer polls for it.
                self._changed.notify_all()

    def _poll(self, due: Sequence[_Waiter]) -> None:
        outcomes: Mapping[str, TransactionOutcome] = {}
        try:
            queries = {waiter.query.key: waiter.query for waiter in due}
            outcomes = self._chain.outcomes(list(queries.values()), landed_only=True)
        except PortError as error:
            _log.warning("outcomes_unreadable", chain=self._chain.name, reason=error.reason)
        except Exception:
            # An exception in the thread would be lost, and the waiters would wait for a thread that died.
            _log.exception("outcomes_failed", chain=self._chain.name)
        with self._changed:
            for waiter in due:
                outcome = outcomes.get(waiter.query.key)
                # Only the workers decide that nothing can land any more, because they know all signed hashes.
                if outcome is not None and settlement.is_landed(outcome, needed=self._confirmations):
                    waiter.outcome = outcome
                waiter.due = time.monotonic() + waiter.interval
                waiter.interval = max(self._pause, min(waiter.interval * 2, _MAX_INTERVAL_SECONDS))
            self._polling = False
            self._changed.notify_all()


class OutcomePollers(dict[ChainName, OutcomePoller]):
    """The pollers of one process."""


def wait_for_outcome(chain: ChainName, query: TransactionQuery, *, seconds: Decimal | None, account_id: str) -> None:
    """Wait up to `seconds`, or as is usual for the chain, if the account gets a thread; settle a decided outcome."""
    seconds = lifecycle.default_wait_seconds(chain) if seconds is None else seconds
    if seconds <= 0:
        return
    state = app_state()
    with state.threads.try_acquire(ResourceUse.OUTCOME, account_id) as has_permit:
        outcome = state.part(OutcomePollers)[chain].wait(query, seconds=float(seconds)) if has_permit else None
    if outcome is not None:
        settlement.settle(query, outcome)
