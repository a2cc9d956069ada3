"""Retention of the usage log: old entries are deleted, and their sums carried forward, so that no sum changes."""

from collections import defaultdict
from datetime import datetime
from typing import Any

import structlog
from sqlalchemy import delete, func, insert, literal, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from app.credits import retention
from app.credits.retention import UnbalancedError
from app.db import partitions
from app.db.tables import add_amounts, in_list, table_of
from app.db.unit_of_work import batches, read_only_unit, unit_of_work
from app.usage.models import UsageByMonth, UsageByProvider, UsageLog
from app.usage.service import LOGGED_AMOUNTS

_BATCH_SIZE = 100
_MAX_BATCHES = 50
_CARRIED_COLUMNS = ("carried_calls", "carried_cost_nanos", "carried_tokens_in", "carried_tokens_out")
_log = structlog.get_logger(__name__)


def prune(before: datetime, *, batch_size: int = _BATCH_SIZE, max_batches: int = _MAX_BATCHES) -> int:
    """Delete settled calls from before an instant, in short units; return how many.

    Calls since the first month with a partition are left to `drop_months`. Accounts that do not add up are left as they
    are, and logged.
    """
    pruned, unbalanced = 0, set[str]()
    with read_only_unit() as session:
        before = min([before, *(month.start for month in partitions.find(session))])
    for _ in batches(max_batches):
        try:
            with unit_of_work() as session:
                ids, charged = retention.delete_ended(session, before, limit=batch_size, except_accounts=unbalanced)
                lines = _delete_log_lines(session, ids)
                # Accounts before sums, as a charge locks them; and both last, so that charges wait for a moment only.
                retention.carry_forward(session, charged)
                add_amounts(session, table_of(UsageByProvider), ["account_id", "provider"], lines)
        except UnbalancedError as error:
            _log.exception("ledger_not_pruned", accounts=sorted(error.account_ids))
            unbalanced |= error.account_ids
            continue
        pruned += len(ids)
        if len(ids) < batch_size:
            break
    return pruned


def drop_months(before: datetime) -> None:
    """Drop months that ended before an instant; their sums are kept.

    One with an open hold is kept; so is one that does not add up or is in use for long, which is logged.
    """
    with read_only_unit() as session:
        ended = [month for month in partitions.find(session) if month.following().first <= before.date()]
    for month in ended:
        try:
            with unit_of_work() as session:
                partitions.lock(session, month)
                if not retention.close(session, month):
                    return
                entries = month.partition_of("usage_logs", *LOGGED_AMOUNTS).c
                account_id, provider, *amounts = (entries[each.name] for each in LOGGED_AMOUNTS)
                sums = select(account_id, provider, literal(month.first), func.count(), *map(func.sum, amounts))
                columns, grouped = [*table_of(UsageByMonth).c], sums.group_by(account_id, provider)
                session.execute(insert(UsageByMonth).from_select(columns, grouped))
                partitions.drop(session, month)
        except UnbalancedError as error:
            _log.exception("ledger_not_pruned", accounts=sorted(error.account_ids))
            return
        except DBAPIError as error:
            _log.warning("month_not_dropped", month=str(month.first), reason=str(error.orig))
            return


def _delete_log_lines(session: Session, log_ids: list[str]) -> list[dict[str, Any]]:
    """Delete entries of the log, and return their sums by account and provider, in this order."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    if not log_ids:
        return []
    deleted = delete(table_of(UsageLog)).where(in_list(session, UsageLog.id, log_ids)).returning(*LOGGED_AMOUNTS)
    for account_id, provider, *amounts in session.execute(deleted):
        of_provider = sums[account_id, provider]
        for position, amount in enumerate((1, *amounts)):
            of_provider[position] += amount
    columns = ("account_id", "provider", *_CARRIED_COLUMNS)
    return [dict(zip(columns, (*of, *amounts), strict=True)) for of, amounts in sorted(sums.items())]
