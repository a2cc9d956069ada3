"""Proof of the movements: each counts as its end says, and funding requests were given what deposits brought.

Looks at what is pending, and at what is younger than the windows of the limits; holds of older ones may be forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import Row, Select, func, or_, select

from app.core import clock
from app.extensions import db
from app.spending import service as spending
from app.spending.service import HoldState
from app.wallets.lifecycle import Kind, Reason, Status, TransactionType
from app.wallets.models import FundingAllocation, FundingDeposit, Transaction

# Retention keeps holds for two months at least.
_LOOKS_BACK = timedelta(days=60)
_MOVING = (TransactionType.TRANSFER.value, TransactionType.WITHDRAWAL.value, TransactionType.SWAP.value)
_ROWS_AT_ONCE = 1000


def check(now: datetime | None = None) -> list[str]:
    """Return one sentence per violated invariant, none when all is well. Works in a `snapshot`: it streams."""
    since = (now or clock.now()) - _LOOKS_BACK
    return [*_wrong_holds(since), *_wrong_requests(since), *_wrong_deposits(since)]


def _wrong_holds(since: datetime) -> Iterator[str]:
    """Compare the states of movements with those of their holds."""
    moved = db.session.execute(
        select(
            Transaction.id,
            Transaction.status,
            Transaction.error,
            Transaction.tx_hash,
            Transaction.cost_nanos,
            Transaction.kind,
        ).where(
            Transaction.type.in_(_MOVING),
            func.coalesce(Transaction.kind, "") != Kind.BRIDGE_LEG.value,
            or_(Transaction.status == Status.PENDING.value, Transaction.created_at >= since),
        ),
        execution_options={"yield_per": _ROWS_AT_ONCE},
    )
    for rows in moved.partitions():
        held = spending.states_of([row.id for row in rows])
        for row in rows:
            state = held.get(row.id)
            if state is None and row.cost_nanos == 0 and row.kind not in (None, Kind.BRIDGE.value):
                continue  # a wallet of the service's own submitted it for somebody else: it moves nothing of ours
            # What was refused before anything was signed has none.
            right = HoldState.RELEASED if state is None and row.tx_hash is None else state
            if right != _should_be(Status(row.status), row.error):
                yield f"movement {row.id} is {row.status}, its hold {state or 'missing'}"


def _should_be(status: Status, error: str | None) -> HoldState:
    if status is Status.PENDING:
        return HoldState.HELD
    spent = status is Status.CONFIRMED or error == Reason.WRITTEN_OFF
    return HoldState.SPENT if spent else HoldState.RELEASED


def _wrong_requests(since: datetime) -> Iterator[str]:
    """Compare what was asked for with what deposits gave: all of it to the confirmed, less to the others."""
    asked = (
        select(Transaction.id, Transaction.status, Transaction.amount_units, FundingAllocation.units)
        .outerjoin(FundingAllocation, FundingAllocation.transaction_id == Transaction.id)
        .where(
            Transaction.type == TransactionType.FUNDING.value,
            or_(Transaction.status == Status.PENDING.value, Transaction.created_at >= since),
        )
        .order_by(Transaction.id)
    )
    for first, given in _summed(asked):
        confirmed = first.status == Status.CONFIRMED
        if given > first.amount_units or (given == first.amount_units) != confirmed:
            yield f"funding request {first.id} is {first.status} with {given} of {first.amount_units} units"


def _wrong_deposits(since: datetime) -> Iterator[str]:
    brought = (
        select(FundingDeposit.id, FundingDeposit.units.label("brought"), FundingAllocation.units)
        .join(FundingAllocation, FundingAllocation.deposit_id == FundingDeposit.id)
        .where(FundingDeposit.found_at >= since)
        .order_by(FundingDeposit.id)
    )
    for first, given in _summed(brought):
        if given > first.brought:
            yield f"deposit {first.id} brought {first.brought} units and gave {given}"


def _summed(wanted: Select[*tuple[Any, ...]]) -> Iterator[tuple[Row[*tuple[Any, ...]], int]]:
    """Return each row with the sum of its allocations; added up here, for SQLite keeps units as text."""
    rows: Iterable[Row[*tuple[Any, ...]]] = db.session.execute(
        wanted.execution_options(yield_per=_ROWS_AT_ONCE)
    )
    for _, of_one in groupby(rows, key=lambda row: row.id):
        group = list(of_one)
        yield group[0], sum(row.units or 0 for row in group)
