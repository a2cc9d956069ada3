"""Shared budgets and payments: their limits, and how many may leave in some minutes."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import String, cast, func, select
from sqlalchemy.orm import Session

from app.core import clock, money
from app.errors import BudgetLimitExceeded, PriceUnavailable
from app.identity import budgets
from app.identity.budgets import SharedBudget
from app.spending.accounts import MAX_COUNTED_NANOS, Account
from app.spending.models import SpendingHold
from app.spending.policy import SpendingRequest

_RELEASED = "released"


def lock(session: Session, account: Account, request: SpendingRequest) -> list[str]:
    """Lock the budgets that the wallet shares, and check the request against them; return their ids.

    Raises: BudgetLimitExceeded, PriceUnavailable.
    """
    if request.buys_credits:
        return []
    shared = budgets.lock(session, budgets.budgets_of(session, account.wallet_id, account.agent_id))
    assert_within(session, shared, request)
    return [each.id for each in shared]


def assert_within(
    session: Session, shared: Sequence[SharedBudget], request: SpendingRequest, *, own_nanos: int = 0
) -> None:
    """Check a request against shared budgets; `own_nanos` are held for it already."""
    for budget in shared:
        if request.value_nanos is None and budget.limit_nanos is None and budget.velocity is None:
            continue
        if request.value_nanos is None:
            raise PriceUnavailable(details={"rule": "budget", "budget_id": budget.id})
        details: dict[str, Any] = {"rule": "budget", "budget_id": budget.id, "budget": budget.name}
        details["requested_usd"] = money.usd_from_nanos(request.value_nanos)
        limit_nanos = MAX_COUNTED_NANOS if budget.limit_nanos is None else budget.limit_nanos
        left_nanos = max(0, limit_nanos - budget.used_nanos)
        if request.value_nanos > left_nanos + own_nanos:
            amounts = {"limit_usd": limit_nanos, "spent_usd": budget.used_nanos, "remaining_usd": left_nanos}
            details |= {name: money.usd_from_nanos(nanos) for name, nanos in amounts.items()}
            details["resets_at"] = budget.resets_at and clock.isoformat(budget.resets_at)
            raise BudgetLimitExceeded(f"This transaction exceeds the shared budget {budget.name!r}.", details=details)
        velocity = budget.velocity
        if velocity is not None and not own_nanos:
            payments, paid_nanos = paid_since(session, budget.id, clock.now() - timedelta(minutes=velocity.minutes))
            if velocity.is_exceeded(payments, paid_nanos + request.value_nanos):
                details |= {"minutes": velocity.minutes, "payments": payments}
                details["spent_usd"] = money.usd_from_nanos(paid_nanos)
                raise BudgetLimitExceeded(
                    f"Too much was paid from the shared budget {budget.name!r} in {velocity.minutes} minutes; wait.",
                    details=details,
                )


def paid_since(session: Session, budget_id: str, since: datetime) -> tuple[int, int]:
    """Return how many payments count in a budget since an instant, and how much."""
    named = SpendingHold.budgets.is_not(None), cast(SpendingHold.budgets, String).contains(budget_id)
    counts = SpendingHold.created_at >= since, SpendingHold.state != _RELEASED
    paid = select(func.count(), func.sum(SpendingHold.amount_nanos)).where(*named, *counts)
    payments, nanos = session.execute(paid).one()
    return payments, int(nanos or 0)
