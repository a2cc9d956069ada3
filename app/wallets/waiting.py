"""Waiting for outcomes inside web requests: all waiting requests of a process share their RPC calls.

One of the waiters asks the chain for all that are due (leader and followers). How many may wait is bounded; when
the room is full the answer is `pending` at once and the workers finish.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

import structlog
from flask import current_app

from app.core.chains import ChainName
from app.ports import provider
from app.ports.chain import Chain, Outcome, Watch
from app.ports.errors import PortError
from app.wallets import settlement

_log = structlog.get_logger(__name__)
_MAX_WAITING = 400
_SECONDS_BETWEEN_LOOKS = (0.05, 1.0)
_SHARED_WITHIN_SECONDS = 0.05


@dataclass(slots=True)
class _Waiter:
    watch: Watch
    due: float
    pause: float = _SECONDS_BETWEEN_LOOKS[0]
    outcome: Outcome | None = None


class WaitingRoom:
    """The requests of one process that wait for outcomes on one chain."""

    def __init__(self, chain: Chain) -> None:
        """Open the room for a chain."""
        self._chain = chain
        self._changed = threading.Condition()
        self._waiters: dict[str, _Waiter] = {}
        self._led = False

    def wait(self, watch: Watch, *, seconds: float) -> Outcome | None:
        """Return the decided outcome of a movement, or None when time or room ran out."""
        deadline = time.monotonic() + seconds
        waiter = _Waiter(watch, due=time.monotonic())
        with self._changed:
            if len(self._waiters) >= _MAX_WAITING:
                return None
            self._waiters[watch.key] = waiter
        try:
            while waiter.outcome is None and time.monotonic() < deadline:
                with self._changed:
                    now = time.monotonic()
                    if self._led or waiter.due > now:
                        until = deadline if self._led else min(deadline, waiter.due)
                        self._changed.wait(max(0.0, until - now))
                        continue
                    self._led = True
                    due = [w for w in self._waiters.values() if w.due <= now + _SHARED_WITHIN_SECONDS]
                self._look(due)
            return waiter.outcome
        finally:
            with self._changed:
                self._waiters.pop(watch.key, None)
                self._changed.notify_all()

    def _look(self, due: Sequence[_Waiter]) -> None:
        outcomes: Mapping[str, Outcome] = {}
        try:
            outcomes = self._chain.outcomes([waiter.watch for waiter in due])
        except PortError as error:
            _log.warning("outcomes_unreadable", chain=self._chain.name, reason=error.reason)
        finally:
            with self._changed:
                for waiter in due:
                    outcome = outcomes.get(waiter.watch.key)
                    if outcome is not None and settlement.is_decided(self._chain.name, outcome):
                        waiter.outcome = outcome
                    waiter.due = time.monotonic() + waiter.pause
                    waiter.pause = min(waiter.pause * 2, _SECONDS_BETWEEN_LOOKS[1])
                self._led = False
                self._changed.notify_all()


def for_outcome(chain: ChainName, watch: Watch, *, seconds: Decimal) -> None:
    """Wait for a movement's outcome up to `seconds` and settle it when it is decided."""
    if seconds <= 0:
        return
    rooms: dict[ChainName, WaitingRoom] = current_app.extensions["waiting_rooms"]
    outcome = rooms[chain].wait(watch, seconds=float(seconds))
    if outcome is not None:
        settlement.settle(watch.key, outcome)


def rooms_for(chains: Mapping[ChainName, Chain]) -> dict[ChainName, WaitingRoom]:
    """Make the waiting rooms of a process, one per chain."""
    return {name: WaitingRoom(chain) for name, chain in chains.items()}


def open_rooms() -> None:
    """Make this application's waiting rooms; the factory calls it once."""
    current_app.extensions["waiting_rooms"] = rooms_for(provider.current().chains)
