"""Audit of movements: holds match statuses, and allocations match deposits and funding requests.

Covers what is pending or younger than the windows of the limits; holds of older movements may have been deleted.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, func, or_, select
from sqlalchemy.orm import Session

from app.core import clock
from app.core.movement_kinds import MovementKind
from app.spending import holds as spending_holds
from app.spending.holds import SpendingHoldState
from app.wallets.core.lifecycle import MovementStatus, StatusReason, TransactionType
from app.wallets.core.models import FundingAllocation, FundingDeposit, Transaction

# Retention keeps holds for two months at least.
_LOOKBACK = timedelta(days=60)
_MOVEMENT_TYPES = [
    each.value
    for each in (TransactionType.TRANSFER, TransactionType.WITHDRAWAL, TransactionType.SWAP, TransactionType.PAYMENT)
]
# Legs are covered by their movement's; what the service sells, it was paid for.
_KINDS_WITHOUT_HOLD = (MovementKind.LEG.value, MovementKind.GAS_SALE.value)
_ROWS_PER_FETCH = 1000


def check(session: Session, now: datetime | None = None) -> list[str]:
    """Return one sentence per violated invariant. Runs in a `snapshot`, because it streams."""
    since = (now or clock.now()) - _LOOKBACK
    return [*_wrong_holds(session, since), *_wrong_requests(session, since), *_wrong_deposits(session, since)]


def _is_covered(since: datetime) -> ColumnElement[bool]:
    return or_(Transaction.status == MovementStatus.PENDING.value, Transaction.created_at >= since)


def _wrong_holds(session: Session, since: datetime) -> Iterator[str]:
    columns = Transaction.id, Transaction.status, Transaction.error, Transaction.tx_hash, Transaction.amount_units
    has_hold = func.coalesce(Transaction.kind, "").not_in(_KINDS_WITHOUT_HOLD)
    movements = select(*columns).where(Transaction.type.in_(_MOVEMENT_TYPES), has_hold, _is_covered(since))
    for rows in session.execute(movements.execution_options(yield_per=_ROWS_PER_FETCH)).partitions():
        hold_states = spending_holds.states_of(session, [row.id for row in rows])
        for row in rows:
            state = hold_states.get(row.id)
            # Relayed transactions move no tokens of the wallet, and have no hold.
            if state is None and row.amount_units == 0:
                continue
            # Movements that failed before signing have no hold.
            actual = SpendingHoldState.RELEASED if state is None and row.tx_hash is None else state
            is_spent = row.status == MovementStatus.CONFIRMED or row.error == StatusReason.WRITTEN_OFF
            ended = SpendingHoldState.SPENT if is_spent else SpendingHoldState.RELEASED
            if actual != (SpendingHoldState.HELD if row.status == MovementStatus.PENDING else ended):
                yield f"movement {row.id} is {row.status}, its hold {state or 'missing'}"


def _wrong_requests(session: Session, since: datetime) -> Iterator[str]:
    """Compare requests with their allocations: the full amount if confirmed, less otherwise."""
    requests = (
        select(Transaction.id, Transaction.status, Transaction.amount_units, FundingAllocation.units)
        .outerjoin(FundingAllocation, FundingAllocation.transaction_id == Transaction.id)
        .where(Transaction.type == TransactionType.FUNDING.value, _is_covered(since))
        .order_by(Transaction.id)
    )
    for first, allocated in _with_allocated_units(session, requests):
        confirmed = first.status == MovementStatus.CONFIRMED
        if allocated > first.amount_units or (allocated == first.amount_units) != confirmed:
            yield f"funding request {first.id} is {first.status} with {allocated} of {first.amount_units} units"


def _wrong_deposits(session: Session, since: datetime) -> Iterator[str]:
    deposits = (
        select(FundingDeposit.id, FundingDeposit.units.label("deposited"), FundingAllocation.units)
        .join(FundingAllocation, FundingAllocation.deposit_id == FundingDeposit.id)
        .where(FundingDeposit.found_at >= since)
        .order_by(FundingDeposit.id)
    )
    for first, allocated in _with_allocated_units(session, deposits):
        if allocated > first.deposited:
            yield f"deposit {first.id} of {first.deposited} units was allocated {allocated}"


def _with_allocated_units(
    session: Session, statement: Select[*tuple[Any, ...]]
) -> Iterator[tuple[Row[*tuple[Any, ...]], int]]:
    """Return each row with the sum of its allocations, summed here because SQLite stores units as text."""
    rows: Iterable[Row[*tuple[Any, ...]]] = session.execute(statement.execution_options(yield_per=_ROWS_PER_FETCH))
    for _, rows_of_one in groupby(rows, key=lambda row: row.id):
        group = list(rows_of_one)
        yield group[0], sum(row.units or 0 for row in group)
