"""Retention of history: old trading queries are deleted with their events.

Movements, funding requests and signed bytes are kept.
"""

from collections import Counter
from datetime import datetime
from functools import partial

from sqlalchemy import delete, select, text

from app.db.tables import add_amounts, delete_rows, in_list, table_of
from app.db.unit_of_work import read_only_unit, run_in_batches, unit_of_work
from app.spending import accounts as spending_accounts
from app.wallets.core.models import Transaction, TransactionEvent, Wallet

_BATCH_SIZE = 100
_MAX_BATCHES = 50
# The condition of the partial index.
_QUERIES = text("transactions.type = 'trading_query'")


def prune(before: datetime, *, batch_size: int = _BATCH_SIZE, max_batches: int = _MAX_BATCHES) -> int:
    """Delete old trading queries in short units; return how many."""
    return run_in_batches(partial(_prune_queries, before), batch_size=batch_size, max_batches=max_batches)


def _prune_queries(before: datetime, limit: int) -> int:
    with read_only_unit() as session:
        old = session.execute(
            select(Transaction.id, Transaction.wallet_id)
            .where(_QUERIES, Transaction.created_at < before)
            .order_by(Transaction.created_at)
            .limit(limit)
        ).all()
    if not old:
        return 0
    ids = [row.id for row in old]
    with unit_of_work() as session:
        # Lock the accounts first, as in every unit that changes rows of several wallets.
        spending_accounts.lock_accounts(session, {row.wallet_id for row in old})
        deleted = session.scalars(
            delete(Transaction).where(in_list(session, Transaction.id, ids)).returning(Transaction.wallet_id),
            execution_options={"synchronize_session": False},
        ).all()
        delete_rows(session, TransactionEvent, in_list(session, TransactionEvent.transaction_id, ids))
        counts = [{"id": each, "transaction_count": -count} for each, count in sorted(Counter(deleted).items())]
        add_amounts(session, table_of(Wallet), ["id"], counts)
    return len(old)
