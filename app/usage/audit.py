"""Audit of the usage log: it adds up to its sums by provider, to what accounts have spent, and to keys' budgets."""

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from app.credits import accounts as credit_accounts
from app.credits import holds as credit_holds
from app.identity import key_limits
from app.usage.models import UsageByProvider, UsageLog

_BATCH = 500


_SUMS = ("cost_nanos", "tokens_in", "tokens_out")
_logged = (
    select(
        UsageLog.account_id,
        UsageLog.provider,
        func.count().label("calls"),
        *(func.sum(getattr(UsageLog, name)).label(name) for name in _SUMS),
    )
    .group_by(UsageLog.account_id, UsageLog.provider)
    .subquery()
)
_WRONG_SUMS = (
    select(UsageByProvider.account_id, _logged.c.account_id, UsageByProvider.provider, _logged.c.provider)
    .join_from(
        UsageByProvider,
        _logged,
        (_logged.c.account_id == UsageByProvider.account_id) & (_logged.c.provider == UsageByProvider.provider),
        full=True,
    )
    .where(
        or_(
            *(
                func.coalesce(getattr(UsageByProvider, name) - getattr(UsageByProvider, f"carried_{name}"), 0)
                != func.coalesce(_logged.c[name], 0)
                for name in ("calls", *_SUMS)
            )
        )
    )
)
_COSTS = select(UsageByProvider.account_id, func.sum(UsageByProvider.cost_nanos)).group_by(UsageByProvider.account_id)


def check(session: Session) -> list[str]:
    """Return one sentence per violated invariant."""
    return [*_wrong_sums(session), *_wrong_spending(session), *_wrong_budgets(session)]


def _wrong_sums(session: Session) -> list[str]:
    return [
        f"{account_id or logged_id}: the sums for {provider or logged_provider} are not those of the log"
        for account_id, logged_id, provider, logged_provider in session.execute(_WRONG_SUMS)
    ]


def _wrong_spending(session: Session) -> list[str]:
    costs = {account_id: int(nanos) for account_id, nanos in session.execute(_COSTS)}
    ids = list(costs)
    violations = []
    for start in range(0, len(ids), _BATCH):
        balances = credit_accounts.balances(session, ids[start : start + _BATCH])
        violations += [
            f"{account_id}: {balance.spent_nanos} nano-dollars are spent, the log has {costs[account_id]}"
            for account_id, balance in balances.items()
            if balance.spent_nanos != costs[account_id]
        ]
    return violations


def _wrong_budgets(session: Session) -> list[str]:
    """Find budgets that count less than their calls; more is possible where a window ended between the two."""
    return [
        f"key {key_id}: its budget counts {used_nanos} nano-dollars, its calls have {nanos}"
        for key_id, account_id, used_nanos, since in key_limits.counted(session)
        if (nanos := credit_holds.total_since(session, account_id, since, api_key_id=key_id)) > used_nanos
    ]
