"""Forgetting old lines of the log: what they add up to is carried forward, so that every sum stays what it was."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from typing import TypeAlias

import structlog
from sqlalchemy import delete

from app.core import pacing
from app.core.tables import add_to, among, table_of
from app.core.unit_of_work import unit_of_work
from app.credits import retention
from app.credits.retention import UnbalancedError
from app.extensions import db
from app.usage.models import UsageByProvider, UsageLog

_PER_UNIT = 100
_UNITS = 50
_Sums: TypeAlias = dict[tuple[str, str], list[int]]
"""Calls, cost, tokens in and tokens out, by account and provider."""
_CARRIED = ("carried_calls", "carried_cost_nanos", "carried_tokens_in", "carried_tokens_out")
_log = structlog.get_logger(__name__)


def prune(before: datetime, *, per_unit: int = _PER_UNIT, units: int = _UNITS) -> int:
    """Forget calls that ended and were made before an instant, in short units; return how many.

    Accounts that do not add up are left as they are, and told.
    """
    pruned, unbalanced = 0, set[str]()
    for _ in pacing.units(units):
        try:
            with unit_of_work():
                taken = retention.take_ended(before, limit=per_unit, except_accounts=unbalanced)
                lines = _take(taken.hold_ids)
                # Accounts before sums, as a charge locks them; and both last, so that charges wait for a moment only.
                retention.carry(taken)
                _carry(lines)
        except UnbalancedError as error:
            _log.exception("ledger_not_pruned", accounts=sorted(error.account_ids))
            unbalanced |= error.account_ids
            continue
        pruned += len(taken.hold_ids)
        if len(taken.hold_ids) < per_unit:
            break
    return pruned


def _take(log_ids: list[str]) -> _Sums:
    """Take lines of the log away, and return what they add up to."""
    sums: _Sums = defaultdict(lambda: [0, 0, 0, 0])
    if not log_ids:
        return sums
    lines = db.session.execute(
        delete(UsageLog)
        .where(among(UsageLog.id, log_ids))
        .returning(
            UsageLog.account_id,
            UsageLog.provider,
            UsageLog.cost_nanos,
            UsageLog.tokens_in,
            UsageLog.tokens_out,
        )
        .execution_options(synchronize_session=False)
    )
    for account_id, provider, *amounts in lines:
        of_provider = sums[account_id, provider]
        for place, amount in enumerate((1, *amounts)):
            of_provider[place] += amount
    return sums


def _carry(sums: _Sums) -> None:
    rows = [
        {"account_id": account_id, "provider": provider, **dict(zip(_CARRIED, amounts, strict=True))}
        for (account_id, provider), amounts in sorted(sums.items())
    ]
    add_to(table_of(UsageByProvider), ["account_id", "provider"], rows)
