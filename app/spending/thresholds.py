"""Thresholds of limits: an event when what a wallet spends in a window reaches 50, 80, 95 or 100 % of its limit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy.orm import Session

from app.core import clock
from app.core.money import usd_string
from app.events import outbox
from app.events.types import EventType
from app.spending import policy
from app.spending.accounts import Account
from app.spending.policy import Controls, Window

PERCENTAGES = (50, 80, 95, 100)


@dataclass(frozen=True, slots=True)
class ReachedThreshold:
    """The highest threshold of a limit that an amount reaches."""

    window: str
    period: Window
    percent: int
    limit_nanos: int
    spent_nanos: int


def reached(account: Account, rules: Controls | None, amount_nanos: int) -> Iterator[ReachedThreshold]:
    """Return the thresholds that an amount reaches which is not counted yet; of each limit, the highest one."""
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
            yield ReachedThreshold(window, period, crossed[-1], limit, after)


def announce(session: Session, account: Account, rules: Controls | None, amount_nanos: int) -> None:
    """Record an event for each threshold that an amount reaches, once per window and limit.

    The account must be locked. An amount that reaches none costs no statement.
    """
    for each in reached(account, rules, amount_nanos):
        outbox.record(
            session,
            EventType.BUDGET_THRESHOLD_REACHED,
            agent_id=account.agent_id,
            object_id=account.wallet_id,
            data={
                "wallet_id": account.wallet_id,
                "window": each.window,
                "percent": each.percent,
                "limit_usd": usd_string(each.limit_nanos),
                "spent_usd": usd_string(each.spent_nanos),
                "resets_at": clock.isoformat(each.period.resets_at),
            },
            once=f"budget:{each.window}:{each.period.start}:{each.limit_nanos}:{each.percent}",
        )
