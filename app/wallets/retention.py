"""Forgetting what nobody needs of old history: trading queries, and how ended transactions got where they are.

Movements, funding requests and what was signed for them stay.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import partial

from sqlalchemy import delete, select, text

from app.core import pacing
from app.core.tables import add_to, among, table_of
from app.core.unit_of_work import reading, unit_of_work
from app.spending import service as spending
from app.wallets.lifecycle import Status
from app.wallets.models import Transaction, TransactionEvent, Wallet

_PER_UNIT = 100
_UNITS = 50
# In the words of the index, which covers queries only.
_QUERIES = text("transactions.type = 'trading_query'")


def prune(before: datetime, *, per_unit: int = _PER_UNIT, units: int = _UNITS) -> int:
    """Forget old trading queries, then old events of ended transactions, in short units; return how many."""
    return sum(
        pacing.repeat(partial(step, before), per_unit=per_unit, most=units)
        for step in (_prune_queries, _prune_events)
    )


def _prune_queries(before: datetime, limit: int) -> int:
    with reading() as session:
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
        # The wallets first, as everybody does who takes rows away from several.
        spending.lock_accounts({row.wallet_id for row in old})
        gone = session.scalars(
            delete(Transaction).where(among(Transaction.id, ids)).returning(Transaction.wallet_id),
            execution_options={"synchronize_session": False},
        ).all()
        session.execute(
            delete(TransactionEvent)
            .where(among(TransactionEvent.transaction_id, ids))
            .execution_options(synchronize_session=False)
        )
        counts = [{"id": each, "transaction_count": -count} for each, count in sorted(Counter(gone).items())]
        add_to(table_of(Wallet), ["id"], counts)
    return len(old)


def _prune_events(before: datetime, limit: int) -> int:
    old = (
        select(TransactionEvent.id)
        .join(Transaction, Transaction.id == TransactionEvent.transaction_id)
        .where(TransactionEvent.at < before, Transaction.status != Status.PENDING.value)
        .order_by(TransactionEvent.at)
        .limit(limit)
        .with_for_update(skip_locked=True, of=TransactionEvent)
    )
    with unit_of_work() as session:
        gone = session.execute(
            delete(TransactionEvent)
            .where(TransactionEvent.id.in_(old.scalar_subquery()))
            .execution_options(synchronize_session=False)
        )
    return int(gone.rowcount)  # type: ignore[attr-defined]
