"""Holds that the audits expect for transactions that tests insert directly."""

from __future__ import annotations

from sqlalchemy.orm import Session

from app.core import clock
from app.core.identifiers import new_id
from app.spending import holds as spending_holds
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import FundingAllocation, FundingDeposit, Transaction


def count_as(session: Session, transaction_id: str, status: MovementStatus, *, value_nanos: int = 0) -> None:
    """Insert the hold of a movement by its status, or pay a funding request, in the current unit."""
    session.flush()
    row = session.get_one(Transaction, transaction_id)
    if row.type == TransactionType.FUNDING:
        if status is MovementStatus.CONFIRMED:
            _pay(session, row)
        return
    spending_holds.record_without_limits(session, row.wallet_id, reference=row.id, value_nanos=value_nanos)
    if status is MovementStatus.CONFIRMED:
        spending_holds.spend(session, row.id)
    elif status is MovementStatus.FAILED:
        spending_holds.release(session, row.id)


def _pay(session: Session, request: Transaction) -> None:
    deposit = FundingDeposit(
        id=new_id(), wallet_id=request.wallet_id, chain=request.chain, currency=request.currency,
        units=request.amount_units, position=new_id(), block_number=1, block_hash="0x01", mark_before={}, mark_block=0,
        mark_revision=0, by_mark=False, final=True, found_at=clock.now(),
    )  # fmt: skip
    session.add(deposit)
    session.flush()
    session.add(FundingAllocation(deposit_id=deposit.id, transaction_id=request.id, units=request.amount_units))
