"""Waiting for outcomes inside web requests: all waiting requests of a process share their RPC calls.

One thread per chain asks for all that are due, and the requests only wait. How many may wait the budget of threads
says; when there is no place the answer is `pending` at once and the workers finish.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal

import structlog
from flask import current_app

from app.core.chains import ChainName
from app.identity import guards
from app.ports import provider
from app.ports.chain import Chain, Outcome, Watch
from app.ports.errors import PortError
from app.wallets import settlement
from app.web import budgets
from app.web.budgets import Use

_log = structlog.get_logger(__name__)
_SECONDS_BETWEEN_LOOKS = (0.05, 1.0)
_SHARED_WITHIN_SECONDS = 0.05


@dataclass(slots=True)
class _Waiter:
    watch: Watch
    due: float
    pause: float = _SECONDS_BETWEEN_LOOKS[0]
    outcome: Outcome | None = None


class WaitingRoom:
    """The requests of one process that wait for outcomes on one chain, and the one thread that asks for them."""

    def __init__(self, chain: Chain, *, confirmations: int) -> None:
        """Open the room for a chain whose movements count at a depth of `confirmations`.

        The thread starts with the first question, so a server may fork before.
        """
        self._chain = chain
        self._confirmations = confirmations
        self._changed = threading.Condition()
        self._waiters: dict[str, _Waiter] = {}
        self._asking = False
        self._asker = ThreadPoolExecutor(1, thread_name_prefix=f"outcomes-{chain.name}")

    def wait(self, watch: Watch, *, seconds: float) -> Outcome | None:
        """Return the decided outcome of a movement, or None when time ran out; never later than asked."""
        deadline = time.monotonic() + seconds
        waiter = _Waiter(watch, due=time.monotonic())
        with self._changed:
            self._waiters[watch.key] = waiter
            try:
                while waiter.outcome is None and (now := time.monotonic()) < deadline:
                    if not self._asking and waiter.due <= now:
                        due = [w for w in self._waiters.values() if w.due <= now + _SHARED_WITHIN_SECONDS]
                        self._asking = True
                        self._asker.submit(self._look, due)
                    until = deadline if self._asking else min(deadline, waiter.due)
                    self._changed.wait(until - now)
                return waiter.outcome
            finally:
                self._waiters.pop(watch.key, None)
                # Whoever else is due must not wait for the one who is leaving.
                self._changed.notify_all()

    def _look(self, due: Sequence[_Waiter]) -> None:
        outcomes: Mapping[str, Outcome] = {}
        try:
            outcomes = self._chain.outcomes([waiter.watch for waiter in due])
        except PortError as error:
            _log.warning("outcomes_unreadable", chain=self._chain.name, reason=error.reason)
        except Exception:
            # Nobody reads what a thread raises, and the waiters must not wait for one that died.
            _log.exception("outcomes_failed", chain=self._chain.name)
        with self._changed:
            for waiter in due:
                outcome = outcomes.get(waiter.watch.key)
                # That nothing can land any more is for the workers to say, who know every hash that was signed.
                if outcome is not None and settlement.is_landed(outcome, needed=self._confirmations):
                    waiter.outcome = outcome
                waiter.due = time.monotonic() + waiter.pause
                waiter.pause = min(waiter.pause * 2, _SECONDS_BETWEEN_LOOKS[1])
            self._asking = False
            self._changed.notify_all()


def for_outcome(chain: ChainName, watch: Watch, *, seconds: Decimal) -> None:
    """Wait for a movement's outcome up to `seconds`, while there is a thread for it; settle it when it is decided."""
    if seconds <= 0:
        return
    rooms: dict[ChainName, WaitingRoom] = current_app.extensions["waiting_rooms"]
    with budgets.threads().place(Use.OUTCOME, guards.account_or_stranger()) as has_place:
        outcome = rooms[chain].wait(watch, seconds=float(seconds)) if has_place else None
    if outcome is not None:
        settlement.settle(watch, outcome)


def open_rooms() -> None:
    """Make this application's waiting rooms, one per chain; the factory calls it once."""
    current_app.extensions["waiting_rooms"] = {
        name: WaitingRoom(chain, confirmations=settlement.confirmations_needed(name))
        for name, chain in provider.current().chains.items()
    }
