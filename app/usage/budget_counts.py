"""Calls and their budgets: that of a key, and those that a key or an account shares."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy.orm import Session

from app.core import clock, money
from app.credits import accounts
from app.credits import holds as credit_holds
from app.credits.holds import HoldResult
from app.errors import BudgetExceeded
from app.identity import budget_counters, budgets
from app.identity.budgets import SharedBudget


class UsageCall(NamedTuple):
    """The call of a provider with a key; `model` may be a client's text, and is shortened.

    `has_budgets` chooses the faster way to count it in budgets, to which it belongs or not.
    """

    api_key_id: str
    provider: str
    model: str
    has_budgets: bool = False


def lock(session: Session, account_id: str, call: UsageCall, step_id: str) -> list[SharedBudget] | None:
    """Lock what a call is counted in; return its budgets, None if there is nothing to count, or no more."""
    counted_in = budgets.lock(session, budgets.budgets_of(session, account_id, call.api_key_id))
    if not counted_in:
        return None
    accounts.lock_available(session, account_id)
    return None if credit_holds.exists(session, step_id) else counted_in


def within(call: UsageCall, counted_in: Sequence[SharedBudget], nanos: int, minimum_nanos: int | None = None) -> int:
    """Return what all budgets of a call cover of an amount. Raises: BudgetExceeded if that is less than the minimum."""
    least = budgets.least_left(counted_in)
    if least is None or (left_nanos := least.remaining_nanos) is None or (left_nanos and nanos <= left_nanos):
        return nanos
    required_nanos = nanos if minimum_nanos is None else min(nanos, minimum_nanos)
    if not left_nanos or left_nanos < required_nanos:
        details = {
            "credits_usd": money.usd_from_nanos(left_nanos), "required_usd": money.usd_from_nanos(required_nanos),
            "resets_at": least.resets_at and clock.isoformat(least.resets_at),
        }  # fmt: skip
        if least.id == call.api_key_id:
            raise BudgetExceeded(details=details)
        message = f"The shared budget {least.name!r} does not cover the call."
        raise BudgetExceeded(message, details={**details, "budget_id": least.id, "budget": least.name})
    return left_nanos


def left_of(session: Session, memo: Mapping[str, Any]) -> int | None:
    left = [each.remaining_nanos for each in budgets.read(session, memo.get("budgets", ()))]
    return min((each for each in left if each is not None), default=None)


def corrected(session: Session, outcome: HoldResult) -> HoldResult:
    """Count what the end of a call changes in its budgets, and return what is left of them."""
    memo, difference = outcome.memo, outcome.charged_nanos - outcome.set_aside_nanos
    if "budgets" not in memo:
        return outcome
    if outcome.held_at is not None and difference < 0:
        budget_counters.give_back(session, memo["budgets"], -difference, held_at=outcome.held_at)
    elif outcome.held_at is not None and difference:
        # What exceeds a hold is bounded by the budget of now, and counts there.
        budget_counters.add(session, memo["budgets"], difference)
    return outcome._replace(budget_nanos=left_of(session, memo))
