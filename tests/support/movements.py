"""What the audits expect of a transaction that a test puts on record by hand: that it counts as it ended."""

from __future__ import annotations

from app.core import clock
from app.core.identifiers import new_id
from app.extensions import db
from app.spending import service as spending
from app.wallets.lifecycle import Status, TransactionType
from app.wallets.models import FundingAllocation, FundingDeposit, Transaction


def count_as(transaction_id: str, status: Status) -> None:
    """Hold nothing for a movement, spent or released as its status says, or pay a request; in the current unit."""
    db.session.flush()
    row = db.session.get_one(Transaction, transaction_id)
    if row.type == TransactionType.FUNDING:
        if status is Status.CONFIRMED:
            _pay(row)
        return
    spending.record(row.wallet_id, reference=row.id, value_nanos=0)
    if status is Status.CONFIRMED:
        spending.spend(row.id)
    elif status is Status.FAILED:
        spending.release(row.id)


def _pay(request: Transaction) -> None:
    deposit = FundingDeposit(
        id=new_id(), wallet_id=request.wallet_id, chain=request.chain, currency=request.currency,
        units=request.amount_units, position=new_id(), block_number=1, block_hash="0x01", mark_before={}, mark_block=0,
        mark_revision=0, by_mark=False, final=True, found_at=clock.now(),
    )  # fmt: skip
    db.session.add(deposit)
    db.session.flush()
    db.session.add(
        FundingAllocation(deposit_id=deposit.id, transaction_id=request.id, units=request.amount_units)
    )
