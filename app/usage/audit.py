"""Audit of the usage log: it adds up to its sums by provider, and to what accounts have spent."""

from sqlalchemy import func, literal, or_, select, union_all
from sqlalchemy.orm import Session

from app.credits import accounts as credit_accounts
from app.db.tables import table_of
from app.usage.models import UsageByMonth, UsageByProvider, UsageLog

_BATCH = 500


_AMOUNTS = ("cost_nanos", "tokens_in", "tokens_out")
_SUMS, _LOG, _DROPPED = table_of(UsageByProvider).c, table_of(UsageLog).c, table_of(UsageByMonth).c
_entries = select(_LOG.account_id, _LOG.provider, literal(1).label("calls"), *(_LOG[name] for name in _AMOUNTS))
_months = select(*(_DROPPED[name] for name in ("account_id", "provider", "calls", *_AMOUNTS)))
_all = union_all(_entries, _months).subquery().c
_amounts = [func.sum(_all[name]).label(name) for name in ("calls", *_AMOUNTS)]
_logged = select(_all.account_id, _all.provider, *_amounts).group_by(_all.account_id, _all.provider).subquery()
_WRONG_SUMS = (
    select(_SUMS.account_id, _logged.c.account_id, _SUMS.provider, _logged.c.provider)
    .select_from(
        table_of(UsageByProvider).join(
            _logged, (_logged.c.account_id == _SUMS.account_id) & (_logged.c.provider == _SUMS.provider), full=True
        )
    )
    .where(
        or_(
            *(
                func.coalesce(_SUMS[name] - _SUMS[f"carried_{name}"], 0) != func.coalesce(_logged.c[name], 0)
                for name in ("calls", *_AMOUNTS)
            )
        )
    )
)
_COSTS = select(_SUMS.account_id, func.sum(_SUMS.cost_nanos)).group_by(_SUMS.account_id)


def check(session: Session) -> list[str]:
    """Return one sentence per violated invariant."""
    wrong = [
        f"{account_id or logged_id}: the sums for {provider or logged_provider} are not those of the log"
        for account_id, logged_id, provider, logged_provider in session.execute(_WRONG_SUMS)
    ]
    costs = {account_id: int(nanos) for account_id, nanos in session.execute(_COSTS)}
    ids = list(costs)
    return wrong + [
        f"{account_id}: {balance.spent_nanos} nano-dollars are spent, the log has {costs[account_id]}"
        for start in range(0, len(ids), _BATCH)
        for account_id, balance in credit_accounts.balances(session, ids[start : start + _BATCH]).items()
        if balance.spent_nanos != costs[account_id]
    ]
