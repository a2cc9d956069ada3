"""Proof of the spending sums: what an account counts is what its held and spent holds add up to."""

from __future__ import annotations

from datetime import date, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Select, func, select

from app.core import clock
from app.extensions import db
from app.spending import policy
from app.spending.holds import HoldState
from app.spending.models import SpendingAccount, SpendingControls, SpendingHold
from app.spending.policy import Spent

_ACCOUNTS_PER_PAGE = 1000


def check(now: datetime | None = None) -> list[str]:
    """Return one sentence per violated invariant, none when all is well.

    Reads accounts whose windows are still open, with their holds by day, a thousand at a time, and orphans in
    two more queries; works in a reading unit.
    """
    return [*_wrong_sums((now or clock.now()).date()), *_orphans()]


def _wrong_sums(today: date) -> list[str]:
    violations: list[str] = []
    last: str | None = None
    # In pages, each of them one statement: nothing is held in memory or open on the server for long.
    while rows := db.session.execute(_counted_and_held(today, after=last)).all():
        for wallet_id, group in groupby(rows, key=lambda row: row.wallet_id):
            expected = Spent()
            for row in group:
                counted = Spent(row.day_nanos, row.week_nanos, row.month_nanos)
                if row.made_on is None:
                    continue
                if row.made_on > row.counted_on:
                    violations.append(
                        f"wallet {wallet_id} has holds of {row.made_on}, after {row.counted_on}"
                    )
                # PostgreSQL sums BIGINT to NUMERIC.
                still = policy.carry(policy.add(Spent(), int(row.amount_nanos)), row.made_on, row.counted_on)
                expected = Spent(
                    expected.day + still.day, expected.week + still.week, expected.month + still.month
                )
            if counted != expected:
                violations.append(f"wallet {wallet_id} counts {counted}, its holds are {expected}")
        last = rows[-1].wallet_id
    return violations


def _counted_and_held(today: date, *, after: str | None) -> Select[*tuple[Any, ...]]:
    """Return a page of accounts with what they count, one row for each day on which they hold something."""
    # Sums counted before this day count nothing any more, whatever they say.
    oldest_count = _earliest(today)
    page = (
        select(SpendingAccount)
        .where(
            SpendingAccount.counted_on >= oldest_count,
            *([] if after is None else [SpendingAccount.wallet_id > after]),
        )
        .order_by(SpendingAccount.wallet_id)
        .limit(_ACCOUNTS_PER_PAGE)
        .subquery()
    )
    per_day = (
        select(
            SpendingHold.wallet_id,
            SpendingHold.made_on,
            func.sum(SpendingHold.amount_nanos).label("amount_nanos"),
        )
        .where(
            SpendingHold.wallet_id.in_(select(page.c.wallet_id)),
            SpendingHold.made_on >= _earliest(oldest_count),
            SpendingHold.state != HoldState.RELEASED.value,
        )
        .group_by(SpendingHold.wallet_id, SpendingHold.made_on)
        .subquery()
    )
    return (
        select(
            page.c.wallet_id,
            page.c.counted_on,
            page.c.day_nanos,
            page.c.week_nanos,
            page.c.month_nanos,
            per_day.c.made_on,
            per_day.c.amount_nanos,
        )
        .outerjoin(per_day, per_day.c.wallet_id == page.c.wallet_id)
        .order_by(page.c.wallet_id)
    )


def _orphans() -> list[str]:
    violations = []
    for table in (SpendingControls, SpendingHold):
        found = db.session.scalar(
            select(func.count())
            .select_from(table)
            .outerjoin(SpendingAccount, SpendingAccount.wallet_id == table.wallet_id)
            .where(SpendingAccount.wallet_id.is_(None))
        )
        if found:
            violations.append(f"{found} rows of {table.__tablename__} belong to no account")
    return violations


def _earliest(day: date) -> date:
    """Return the first day that any window of a day contains."""
    windows = policy.windows(day)
    return min(windows.week.start, windows.month.start)
