"""Forgetting old lines of the log: what they add up to is carried forward, so that every sum stays what it was."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime

import structlog
from sqlalchemy import bindparam, delete, update

from app.core.unit_of_work import unit_of_work
from app.credits import retention
from app.credits.retention import UnbalancedError
from app.extensions import db
from app.usage.models import UsageByProvider, UsageLog

_PER_UNIT = 500
_UNITS = 10
_log = structlog.get_logger(__name__)


def prune(before: datetime, *, per_unit: int = _PER_UNIT, units: int = _UNITS) -> int:
    """Forget calls that ended and were made before an instant, in short units; return how many.

    Accounts that do not add up are left as they are, and told.
    """
    pruned, unbalanced = 0, set[str]()
    for _ in range(units):
        try:
            with unit_of_work():
                ids = retention.prune_ended(before, limit=per_unit, except_accounts=unbalanced)
                _carry(ids)
        except UnbalancedError as error:
            _log.exception("ledger_not_pruned", accounts=sorted(error.account_ids))
            unbalanced |= error.account_ids
            continue
        pruned += len(ids)
        if len(ids) < per_unit:
            break
    return pruned


def _carry(log_ids: list[str]) -> None:
    if not log_ids:
        return
    lines = db.session.execute(
        delete(UsageLog)
        .where(UsageLog.id.in_(log_ids))
        .returning(
            UsageLog.account_id,
            UsageLog.provider,
            UsageLog.cost_nanos,
            UsageLog.tokens_in,
            UsageLog.tokens_out,
        )
        .execution_options(synchronize_session=False)
    )
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for account_id, provider, *amounts in lines:
        of_provider = sums[account_id, provider]
        for place, amount in enumerate((1, *amounts)):
            of_provider[place] += amount
    if not sums:
        return
    carry = (
        update(UsageByProvider)
        .where(
            UsageByProvider.account_id == bindparam("account"),
            UsageByProvider.provider == bindparam("called"),
        )
        .values(
            carried_calls=UsageByProvider.carried_calls + bindparam("more_calls"),
            carried_cost_nanos=UsageByProvider.carried_cost_nanos + bindparam("more_cost"),
            carried_tokens_in=UsageByProvider.carried_tokens_in + bindparam("more_in"),
            carried_tokens_out=UsageByProvider.carried_tokens_out + bindparam("more_out"),
        )
    )
    names = ("more_calls", "more_cost", "more_in", "more_out")
    db.session.connection().execute(
        carry,
        [
            {
                "account": account_id,
                "called": provider,
                **dict(zip(names, sums[account_id, provider], strict=True)),
            }
            for account_id, provider in sorted(sums)
        ],
    )
