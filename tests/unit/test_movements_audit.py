"""The audit of movements finds each row that counts as what it did not become, and nothing where all is well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import delete, update

from app.core import clock
from app.core.identifiers import new_id
from app.core.unit_of_work import snapshot, unit_of_work
from app.spending import service as spending
from app.spending.models import SpendingAccount, SpendingHold
from app.wallets import audit, lifecycle
from app.wallets.lifecycle import Kind, Status, TransactionType
from app.wallets.models import FundingAllocation, FundingDeposit, Transaction, TransactionEvent
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
        with unit_of_work() as session:
            for table in (FundingAllocation, FundingDeposit, TransactionEvent, Transaction, SpendingHold):
                session.execute(delete(table))
            session.execute(update(SpendingAccount).values(day_nanos=0, week_nanos=0, month_nanos=0))


def found() -> list[str]:
    with snapshot():
        return audit.check(NOW)


def record(
    agent: Agent,
    status: Status,
    *,
    type_: TransactionType = TransactionType.TRANSFER,
    made: datetime = NOW,
    **row: Any,
) -> str:
    transaction = Transaction(
        id=new_id(), wallet_id=agent.wallet_id, type=type_.value, chain="base", to_address=agent.address,
        amount_units=WHOLE, currency="ETH", cost_nanos=0, created_at=made, opened_block=1, checks=0, **row,
    )  # fmt: skip
    with unit_of_work():
        lifecycle.record(transaction, status=status)
        return transaction.id


def hold(agent: Agent, reference: str, state: str) -> None:
    with unit_of_work():
        spending.hold(agent.wallet_id, reference=reference, value_nanos=1, recipient=None, family=None)
        if state == "spent":
            spending.spend(reference)
        elif state == "released":
            spending.release(reference)


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
BRIDGE = {"kind": Kind.BRIDGE.value}


@pytest.mark.parametrize(
    ("status", "row", "right"),
    [
        (Status.PENDING, SIGNED, "held"),
        (Status.CONFIRMED, SIGNED, "spent"),
        (Status.FAILED, {**SIGNED, "error": "reverted"}, "released"),
        (Status.PENDING, BRIDGE, "held"),
        (Status.CONFIRMED, BRIDGE, "spent"),
        (Status.FAILED, {**BRIDGE, "error": "refunded"}, "released"),
        (Status.FAILED, {**BRIDGE, "error": "written_off"}, "spent"),
    ],
)
def test_a_movement_that_counts_as_what_it_did_not_become_is_found(
    agent: Agent, status: Status, row: dict[str, Any], right: str
) -> None:
    for state in ("held", "spent", "released", None):
        transaction_id = record(agent, status, **row)
        if state is not None:
            hold(agent, transaction_id, state)
        never_signed = state is None and status is Status.FAILED and row.get("error") == "refunded"
        wanted = [f"movement {transaction_id} is {status}, its hold {state or 'missing'}"]
        assert found() == ([] if state == right or never_signed else wanted)
        with unit_of_work() as session:
            session.execute(delete(TransactionEvent))
            session.execute(delete(Transaction))


def test_what_holds_nothing_by_design_is_no_finding(agent: Agent) -> None:
    record(agent, Status.FAILED, error="insufficient_funds")
    for status in Status:
        record(agent, status, kind=Kind.BRIDGE_LEG.value, bridge_id=new_id(), **{**SIGNED, "nonce": None})
    record(agent, Status.CONFIRMED, type_=TransactionType.TRADING_QUERY)
    # Retention may have forgotten these.
    record(agent, Status.CONFIRMED, made=NOW - timedelta(days=61), **SIGNED)
    assert found() == []


def test_what_is_pending_for_long_is_looked_at_for_as_long(agent: Agent) -> None:
    old = NOW - timedelta(days=500)
    movement = record(agent, Status.PENDING, made=old, **SIGNED)
    request = record(agent, Status.PENDING, type_=TransactionType.FUNDING, made=old)
    deposit(agent, WHOLE, {request: WHOLE}, seen=old)
    assert sorted(found()) == [
        f"funding request {request} is pending with {WHOLE} of {WHOLE} units",
        f"movement {movement} is pending, its hold missing",
    ]


@pytest.mark.parametrize(
    ("status", "given", "findings"),
    [
        (Status.CONFIRMED, [WHOLE], 0),
        (Status.CONFIRMED, [WHOLE - 1, 1], 0),
        (Status.CONFIRMED, [WHOLE - 1], 1),
        (Status.CONFIRMED, [], 1),
        (Status.PENDING, [], 0),
        (Status.PENDING, [WHOLE - 1], 0),
        (Status.PENDING, [WHOLE], 1),
        (Status.FAILED, [], 0),
        (Status.FAILED, [WHOLE - 1], 0),
        (Status.FAILED, [1, WHOLE - 1], 1),
        (Status.CONFIRMED, [WHOLE, 1], 1),
    ],
)
def test_a_request_that_was_given_more_or_less_than_it_became_is_found(
    agent: Agent, status: Status, given: list[int], findings: int
) -> None:
    request = record(agent, status, type_=TransactionType.FUNDING)
    for units in given:
        deposit(agent, units, {request: units})
    wanted = f"funding request {request} is {status} with {sum(given)} of {WHOLE} units"
    assert found() == [wanted] * findings


def test_a_deposit_that_gave_more_than_it_brought_is_found(agent: Agent) -> None:
    first, second = (record(agent, Status.CONFIRMED, type_=TransactionType.FUNDING) for _ in range(2))
    deposit_id = deposit(agent, 2 * WHOLE - 1, {first: WHOLE, second: WHOLE})
    assert found() == [f"deposit {deposit_id} brought {2 * WHOLE - 1} units and gave {2 * WHOLE}"]
