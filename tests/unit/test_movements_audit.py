"""The audit of movements finds each inconsistent row, and reports nothing for consistent ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import delete, update

from app.core import clock
from app.core.identifiers import new_id
from app.core.movement_kinds import MovementKind
from app.db.unit_of_work import snapshot, unit_of_work
from app.extensions import db
from app.spending import holds as spending_holds
from app.spending.models import SpendingAccount, SpendingHold
from app.spending.policy import SpendingRequest
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus, TransactionType
from app.wallets.core.models import FundingAllocation, FundingDeposit, Transaction, TransactionEvent
from app.wallets.maintenance import audit
from tests.support.agents import Agent, register

NOW = clock.now()
# More than 2^63: sums of units must not go through a float or a BIGINT.
ETHER = 10**18
WHOLE = 40 * ETHER + 1


@pytest.fixture
def agent(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Agent]:
    app = build_app(each_database_url)
    with app.app_context():
        yield register(app.test_client())
        # Not in a unit of work: it would lock the tables in another order than the service.
        with db.engine.begin() as connection:
            for table in (FundingAllocation, FundingDeposit, TransactionEvent, Transaction, SpendingHold):
                connection.execute(delete(table))
            connection.execute(update(SpendingAccount).values(day_nanos=0, week_nanos=0, month_nanos=0))


def found() -> list[str]:
    with snapshot() as session:
        return audit.check(session, NOW)


def record(
    agent: Agent,
    status: MovementStatus,
    *,
    type_: TransactionType = TransactionType.TRANSFER,
    made: datetime = NOW,
    **row: Any,
) -> str:
    transaction = Transaction(
        id=new_id(), wallet_id=agent.wallet_id, type=type_.value, chain="base", to_address=agent.address,
        amount_units=WHOLE, currency="ETH", cost_nanos=0, created_at=made, opened_block=1, checks=0, **row,
    )  # fmt: skip
    with unit_of_work() as session:
        lifecycle.record(session, transaction, status=status)
        return transaction.id


def hold(agent: Agent, reference: str, state: str) -> None:
    with unit_of_work() as session:
        spending_holds.hold(session, agent.wallet_id, SpendingRequest(1), reference=reference)
        if state == "spent":
            spending_holds.spend(session, reference)
        elif state == "released":
            spending_holds.release(session, reference)


def deposit(agent: Agent, units: int, gives: dict[str, int], *, seen: datetime = NOW) -> str:
    row = FundingDeposit(
        id=new_id(), wallet_id=agent.wallet_id, chain="base", currency="ETH", units=units, position=new_id(),
        block_number=2, block_hash="0x02", mark_before={}, mark_block=1, mark_revision=0, by_mark=False,
        final=True, found_at=seen,
    )  # fmt: skip
    with unit_of_work() as session:
        session.add(row)
        session.flush()
        for transaction_id, share in gives.items():
            session.add(FundingAllocation(deposit_id=row.id, transaction_id=transaction_id, units=share))
        return row.id


SIGNED = {"tx_hash": "0x01", "nonce": 1, "from_address": "0x1"}
BRIDGE = {"kind": MovementKind.BRIDGE.value}


@pytest.mark.parametrize(
    ("status", "row", "right"),
    [
        (MovementStatus.PENDING, SIGNED, "held"),
        (MovementStatus.CONFIRMED, SIGNED, "spent"),
        (MovementStatus.FAILED, {**SIGNED, "error": "reverted"}, "released"),
        (MovementStatus.PENDING, BRIDGE, "held"),
        (MovementStatus.CONFIRMED, BRIDGE, "spent"),
        (MovementStatus.FAILED, {**BRIDGE, "error": "refunded"}, "released"),
        (MovementStatus.FAILED, {**BRIDGE, "error": "written_off"}, "spent"),
    ],
)
def test_a_movement_with_a_hold_of_the_wrong_state_is_found(
    agent: Agent, status: MovementStatus, row: dict[str, Any], right: str
) -> None:
    for state in ("held", "spent", "released", None):
        transaction_id = record(agent, status, **row)
        if state is not None:
            hold(agent, transaction_id, state)
        never_signed = state is None and status is MovementStatus.FAILED and row.get("error") == "refunded"
        wanted = [f"movement {transaction_id} is {status}, its hold {state or 'missing'}"]
        assert found() == ([] if state == right or never_signed else wanted)
        with unit_of_work() as session:
            session.execute(delete(TransactionEvent))
            session.execute(delete(Transaction))


def test_movements_without_a_hold_by_design_are_not_reported(agent: Agent) -> None:
    record(agent, MovementStatus.FAILED, error="insufficient_funds")
    for status in MovementStatus:
        record(agent, status, kind=MovementKind.LEG.value, bridge_id=new_id(), **{**SIGNED, "nonce": None})
    record(agent, MovementStatus.CONFIRMED, type_=TransactionType.TRADING_QUERY)
    # Retention may have deleted these.
    record(agent, MovementStatus.CONFIRMED, made=NOW - timedelta(days=61), **SIGNED)
    assert found() == []


def test_a_long_pending_movement_is_audited_until_it_ends(agent: Agent) -> None:
    old = NOW - timedelta(days=500)
    movement = record(agent, MovementStatus.PENDING, made=old, **SIGNED)
    request = record(agent, MovementStatus.PENDING, type_=TransactionType.FUNDING, made=old)
    deposit(agent, WHOLE, {request: WHOLE}, seen=old)
    assert sorted(found()) == [
        f"funding request {request} is pending with {WHOLE} of {WHOLE} units",
        f"movement {movement} is pending, its hold missing",
    ]


@pytest.mark.parametrize(
    ("status", "given", "findings"),
    [
        (MovementStatus.CONFIRMED, [WHOLE], 0),
        (MovementStatus.CONFIRMED, [WHOLE - 1, 1], 0),
        (MovementStatus.CONFIRMED, [WHOLE - 1], 1),
        (MovementStatus.CONFIRMED, [], 1),
        (MovementStatus.PENDING, [], 0),
        (MovementStatus.PENDING, [WHOLE - 1], 0),
        (MovementStatus.PENDING, [WHOLE], 1),
        (MovementStatus.FAILED, [], 0),
        (MovementStatus.FAILED, [WHOLE - 1], 0),
        (MovementStatus.FAILED, [1, WHOLE - 1], 1),
        (MovementStatus.CONFIRMED, [WHOLE, 1], 1),
    ],
)
def test_a_request_with_allocations_that_do_not_match_its_status_is_found(
    agent: Agent, status: MovementStatus, given: list[int], findings: int
) -> None:
    request = record(agent, status, type_=TransactionType.FUNDING)
    for units in given:
        deposit(agent, units, {request: units})
    wanted = f"funding request {request} is {status} with {sum(given)} of {WHOLE} units"
    assert found() == [wanted] * findings


def test_a_deposit_with_excess_allocations_is_found(agent: Agent) -> None:
    first, second = (record(agent, MovementStatus.CONFIRMED, type_=TransactionType.FUNDING) for _ in range(2))
    deposit_id = deposit(agent, 2 * WHOLE - 1, {first: WHOLE, second: WHOLE})
    assert found() == [f"deposit {deposit_id} of {2 * WHOLE - 1} units was allocated {2 * WHOLE}"]
