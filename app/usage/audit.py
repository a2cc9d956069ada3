"""Proof of the metering: the log adds up to its sums by provider, and to what the credits say was spent."""

from __future__ import annotations

from sqlalchemy import func, or_, select

from app.credits import service as credits_service
from app.extensions import db
from app.usage.models import UsageByProvider, UsageLog

_BATCH = 500


def check() -> list[str]:
    """Return one sentence per violated invariant, none when all is well. Works in a reading unit."""
    return [*_wrong_sums(), *_wrong_spending()]


def _wrong_sums() -> list[str]:
    logged = (
        select(
            UsageLog.account_id,
            UsageLog.provider,
            func.count().label("calls"),
            func.sum(UsageLog.cost_nanos).label("cost_nanos"),
            func.sum(UsageLog.tokens_in).label("tokens_in"),
            func.sum(UsageLog.tokens_out).label("tokens_out"),
        )
        .group_by(UsageLog.account_id, UsageLog.provider)
        .subquery()
    )
    rows = db.session.execute(
        select(UsageByProvider.account_id, logged.c.account_id, UsageByProvider.provider, logged.c.provider)
        .join_from(
            UsageByProvider,
            logged,
            (logged.c.account_id == UsageByProvider.account_id)
            & (logged.c.provider == UsageByProvider.provider),
            full=True,
        )
        .where(
            or_(
                func.coalesce(UsageByProvider.calls - UsageByProvider.carried_calls, 0)
                != func.coalesce(logged.c.calls, 0),
                func.coalesce(UsageByProvider.cost_nanos - UsageByProvider.carried_cost_nanos, 0)
                != func.coalesce(logged.c.cost_nanos, 0),
                func.coalesce(UsageByProvider.tokens_in - UsageByProvider.carried_tokens_in, 0)
                != func.coalesce(logged.c.tokens_in, 0),
                func.coalesce(UsageByProvider.tokens_out - UsageByProvider.carried_tokens_out, 0)
                != func.coalesce(logged.c.tokens_out, 0),
            )
        )
    )
    return [
        f"{account_id or logged_id}: the sums for {provider or logged_provider} are not those of the log"
        for account_id, logged_id, provider, logged_provider in rows
    ]


def _wrong_spending() -> list[str]:
    costs = {
        account_id: int(nanos)
        for account_id, nanos in db.session.execute(
            select(UsageByProvider.account_id, func.sum(UsageByProvider.cost_nanos)).group_by(
                UsageByProvider.account_id
            )
        )
    }
    ids = list(costs)
    violations = []
    for start in range(0, len(ids), _BATCH):
        balances = credits_service.balances(ids[start : start + _BATCH])
        violations += [
            f"{account_id}: {balance.spent_nanos} nano-dollars are spent, the log says {costs[account_id]}"
            for account_id, balance in balances.items()
            if balance.spent_nanos != costs[account_id]
        ]
    return violations
