"""What the state machines of one wallet share: its limits, what counts against them, and its freeze."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any, Protocol

from hypothesis.stateful import rule

from app.core import clock
from app.core.money import NANOS_PER_USD
from app.db.unit_of_work import unit_of_work
from app.errors import DailyLimitExceeded, MonthlyLimitExceeded, PerTxLimitExceeded, ServiceError, WeeklyLimitExceeded
from app.spending import accounts as spending_accounts
from app.spending import controls as spending_controls
from app.spending.controls import ControlsChange
from tests.support.machines import Machine


class Counted(Protocol):
    """A movement in a model."""

    made_on: date
    counts_nanos: int


def windows_of(counting: Iterable[Counted]) -> tuple[int, int, int]:
    """Return what movements count today, in this week and in this month."""
    today, rows = clock.now().date(), list(counting)
    return (
        sum(each.counts_nanos for each in rows if each.made_on == today),
        sum(each.counts_nanos for each in rows if each.made_on.isocalendar()[:2] == today.isocalendar()[:2]),
        sum(each.counts_nanos for each in rows if (each.made_on.year, each.made_on.month) == (today.year, today.month)),
    )


class LimitedWallet(Machine):
    """A wallet with limits in dollars, of an agent that can be frozen."""

    agent_id: str
    wallet: Any

    def begin_unlimited(self) -> None:
        self.frozen = False
        self.limits = dict.fromkeys(("daily", "weekly", "monthly", "per_tx"), 0)

    def exceeded(self, nanos: int, windows: tuple[int, int, int]) -> type[ServiceError] | None:
        """Return the refusal of a movement, in the order in which limits are checked."""
        day, week, month = windows
        limits = {name: usd * NANOS_PER_USD for name, usd in self.limits.items()}
        checks = (
            (0 < limits["per_tx"] < nanos, PerTxLimitExceeded),
            (0 < limits["daily"] < day + nanos, DailyLimitExceeded),
            (0 < limits["weekly"] < week + nanos, WeeklyLimitExceeded),
            (0 < limits["monthly"] < month + nanos, MonthlyLimitExceeded),
        )
        return next((refusal for broken, refusal in checks if broken), None)

    def set_limits(self, **limits: int) -> None:
        self.limits.update(limits)
        changes = ControlsChange(**{f"{name}_limit_nanos": usd * NANOS_PER_USD for name, usd in limits.items()})
        with unit_of_work() as session:
            spending_controls.put_controls(session, self.wallet.id, changes)

    @rule()
    def the_freeze_changes(self) -> None:
        self.frozen = not self.frozen
        with unit_of_work() as session:
            spending_accounts.set_frozen(session, self.agent_id, frozen=self.frozen)
