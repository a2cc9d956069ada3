"""Thresholds of limits: an event when what a wallet spends in a window reaches 50, 80, 95 or 100 % of its limit."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.core import clock
from app.core.money import usd_string
from app.events import outbox
from app.events.types import EventType
from app.spending import policy
from app.spending.accounts import Account
from app.spending.policy import Controls

PERCENTAGES = (50, 80, 95, 100)


def announce(session: Session, account: Account, rules: Controls | None, amount_nanos: int) -> None:
    """Record an event for the highest threshold of each limit that an amount reaches, once per window and limit.

    The account must be locked, and the amount not counted yet. One that reaches none costs no statement.
    """
    if rules is None or not rules.limited:
        return
    periods = policy.windows(account.today)
    for window, period, limit, spent in (
        ("day", periods.day, rules.daily_limit_nanos, account.spent.day),
        ("week", periods.week, rules.weekly_limit_nanos, account.spent.week),
        ("month", periods.month, rules.monthly_limit_nanos, account.spent.month),
    ):
        after = spent + amount_nanos
        crossed = [each for each in PERCENTAGES if limit and spent * 100 < limit * each <= after * 100]
        if crossed:
            data = {
                "wallet_id": account.wallet_id, "window": window, "percent": crossed[-1],
                "limit_usd": usd_string(limit), "spent_usd": usd_string(after),
                "resets_at": clock.isoformat(period.resets_at),
            }  # fmt: skip
            outbox.record(
                session,
                EventType.BUDGET_THRESHOLD_REACHED,
                agent_id=account.agent_id,
                object_id=account.wallet_id,
                data=data,
                once=f"budget:{window}:{period.start}:{limit}:{crossed[-1]}",
            )
