"""The outcome of a movement in its row: status, reason, cost to the native balance, and what becomes of its hold."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import delete, select, update

from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.ports.chain import BlockRef, SignedTransaction, TransactionOutcome, TransactionQuery, TransactionStatus
from app.spending import accounts as spending_accounts
from app.spending import holds as spending_holds
from app.spending.holds import SpendingHoldState
from app.spending.models import SpendingAccount, SpendingHold
from app.spending.policy import SpendingRequest
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus
from app.wallets.core.models import SignedAttempt, Transaction, TransactionEvent
from app.wallets.transactions import settlement

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SUCCEEDED, REVERTED, VOID = TransactionStatus.SUCCEEDED, TransactionStatus.REVERTED, TransactionStatus.VOID
HELD, SPENT, RELEASED = SpendingHoldState.HELD, SpendingHoldState.SPENT, SpendingHoldState.RELEASED
BLOCK = BlockRef(9, "0x9")
USDC = {"currency": "USDC"}
ETHER = {"currency": "ETH"}
TO_ITSELF = {"to_address": "0xa"}
TO_ETHER = {**USDC, **TO_ITSELF, "output_currency": "ETH"}
FROM_ETHER = {**ETHER, **TO_ITSELF, "output_currency": "USDC"}
ON_SOLANA = {"chain": "solana", "currency": "SOL", "nonce": None}


@pytest.fixture(autouse=True)
def _app(app: Flask) -> Iterator[None]:
    """An application at noon; the rows of these tests have no wallets, so they are removed before its audit."""
    with app.app_context(), time_machine.travel(NOON, tick=False):
        yield
        # Not in a unit of work, which would have to keep the order of locks.
        with db.engine.begin() as connection:
            for table in (TransactionEvent, SignedAttempt, Transaction, SpendingHold, SpendingAccount):
                connection.execute(delete(table))


def pending(*, purpose: AttemptPurpose = AttemptPurpose.PAYMENT, **different: Any) -> str:
    """Add a pending movement of 5 units with its hold, and the signed bytes 0x1."""
    values = {
        "wallet_id": new_id(), "type": "transfer", "chain": "base", "from_address": "0xa", "to_address": "0xc",
        "nonce": 4, "amount_units": 5, "fee_cap_units": 30, "next_check_at": NOON, "checks": 7, **different,
    }  # fmt: skip
    transaction = Transaction(id=new_id(), cost_nanos=1, created_at=NOON, **values)
    signed = SignedTransaction("0x1", b"raw", transaction.nonce, None, {})
    with unit_of_work() as session:
        spending_accounts.open_account(session, transaction.wallet_id, new_id(), frozen=False)
        spending_holds.hold(session, transaction.wallet_id, SpendingRequest(1), reference=transaction.id)
        lifecycle.record(session, transaction, status=MovementStatus.PENDING)
        lifecycle.add_attempt(session, transaction.id, ChainName(transaction.chain), signed, purpose)
    return transaction.id


def settle(transaction_id: str, outcome: TransactionOutcome, *hashes: str) -> bool:
    return settlement.settle(TransactionQuery(transaction_id, "0xa", 4, hashes or ("0x1",)), outcome)


def row_of(transaction_id: str) -> tuple[Transaction, SpendingHoldState]:
    with read_only_unit() as session:
        states = spending_holds.states_of(session, [transaction_id])
        return session.get_one(Transaction, transaction_id), states[transaction_id]


def landed(status: TransactionStatus, fee: int | None = 3, received: int | None = None) -> TransactionOutcome:
    return TransactionOutcome(status, "0x1", BLOCK, 1, fee, received)


@pytest.mark.parametrize(
    ("row", "outcome", "native_out"),
    [
        (USDC, landed(SUCCEEDED), 3),
        (USDC, landed(SUCCEEDED, fee=None), None),
        (ETHER, landed(SUCCEEDED), 8),
        ({**ETHER, **TO_ITSELF}, landed(SUCCEEDED), 3),
        (FROM_ETHER, landed(SUCCEEDED, received=70), 8),
        (TO_ETHER, landed(SUCCEEDED, received=70), 3 - 70),
        # What was received is unknown.
        (TO_ETHER, landed(SUCCEEDED), 3),
        # Hashes identify deposits there.
        (ON_SOLANA, landed(SUCCEEDED), None),
    ],
)
def test_a_success_takes_fee_and_ether_from_the_native_balance(
    row: dict[str, Any], outcome: TransactionOutcome, native_out: int | None
) -> None:
    transaction_id = pending(**row)
    assert settle(transaction_id, outcome)
    found, hold = row_of(transaction_id)
    assert (found.status, found.error, hold) == ("confirmed", None, SPENT)
    assert (found.native_out_units, found.fee_units, found.output_units) == (
        native_out, outcome.fee_units, outcome.received_units,
    )  # fmt: skip
    assert (found.tx_hash, found.block_number, found.block_hash) == ("0x1", 9, "0x9")
    assert (found.confirmed_at, found.checks) == (NOON, 0)
    # Until its block is final.
    assert found.next_check_at == NOON + timedelta(seconds=5)
    assert not settle(transaction_id, outcome)


@pytest.mark.parametrize(
    ("row", "outcome", "reason", "native_out"),
    [
        (ETHER, landed(REVERTED), "reverted", 3),
        (TO_ETHER, landed(REVERTED), "reverted", 3),
        ({**ETHER, "purpose": AttemptPurpose.CANCELLATION}, landed(SUCCEEDED), "cancelled", 3),
        (ETHER, TransactionOutcome(VOID), "slot_taken", 0),
        (ON_SOLANA, TransactionOutcome(VOID), "expired", 0),
        (ON_SOLANA, landed(REVERTED), "reverted", None),
    ],
)
def test_a_failure_takes_at_most_the_fee_and_releases_the_hold(
    row: dict[str, Any], outcome: TransactionOutcome, reason: str, native_out: int | None
) -> None:
    transaction_id, other = pending(**row), pending(**USDC, chain="ethereum")
    assert settle(transaction_id, outcome)
    found, hold = row_of(transaction_id)
    assert (found.status, found.error, hold) == ("failed", reason, RELEASED)
    assert row_of(other)[1] is HELD
    assert (found.native_out_units, found.confirmed_at, found.output_units) == (native_out, None, None)
    # What landed nowhere cannot be in an orphaned block.
    assert (found.next_check_at is None) == (outcome.block is None)


def test_nothing_fails_for_lack_of_a_block_while_other_bytes_may_land() -> None:
    transaction_id, quarantined = pending(**USDC), pending(**ETHER, chain="ethereum")
    with unit_of_work() as session:
        session.execute(update(Transaction).where(Transaction.id == quarantined).values(quarantined_at=NOON))
    assert not settle(transaction_id, TransactionOutcome(VOID), "0x2")
    assert not settle(transaction_id, TransactionOutcome(VOID), "0x1", "0x2")
    assert not settle(quarantined, TransactionOutcome(VOID))
    assert not settle(new_id(), landed(SUCCEEDED))
    for each in (transaction_id, quarantined):
        found, hold = row_of(each)
        assert (found.status, hold) == ("pending", HELD)


def test_a_reopened_movement_has_no_trace_of_its_outcome() -> None:
    transaction_id = pending(**FROM_ETHER)
    assert not settlement.reopen(transaction_id)
    assert settle(transaction_id, landed(SUCCEEDED, received=70))
    assert settlement.reopen(transaction_id)
    assert not settlement.reopen(transaction_id)
    found, hold = row_of(transaction_id)
    assert (found.status, hold, found.checks, found.next_check_at) == ("pending", HELD, 0, NOON)
    outcome = (
        found.block_number, found.block_hash, found.confirmed_at, found.fee_units, found.native_out_units,
        found.output_units,
    )  # fmt: skip
    assert outcome == (None,) * 6
    assert not settlement.reopen(new_id())


def test_a_fee_found_later_completes_the_cost_of_a_swap_to_ether() -> None:
    transaction_id = pending(**TO_ETHER)
    assert not settlement.record_fee(transaction_id, landed(SUCCEEDED))
    assert settle(transaction_id, landed(SUCCEEDED, fee=None, received=70))
    assert settlement.record_fee(transaction_id, landed(SUCCEEDED))
    found, _ = row_of(transaction_id)
    assert (found.fee_units, found.native_out_units, found.output_units) == (3, 3 - 70, 70)
    assert not settlement.record_fee(new_id(), landed(SUCCEEDED))


def test_an_outcome_is_decided_at_the_needed_depth() -> None:
    outcomes = [
        TransactionOutcome(SUCCEEDED, confirmations=2),
        TransactionOutcome(REVERTED, confirmations=3),
        TransactionOutcome(SUCCEEDED, confirmations=1),
        TransactionOutcome(VOID),
        TransactionOutcome(TransactionStatus.WAITING, confirmations=9),
    ]
    assert [settlement.is_landed(each, needed=2) for each in outcomes] == [True, True, False, False, False]
    assert [settlement.is_decided(each, needed=2) for each in outcomes] == [True, True, False, True, False]


def test_a_refusal_is_recorded_for_the_bytes_that_were_refused() -> None:
    transaction_id = pending(**USDC)
    signed = SignedTransaction("0x2", b"raw", 4, None, {})
    with unit_of_work() as session:
        lifecycle.add_attempt(session, transaction_id, ChainName.BASE, signed)

    def refusals() -> list[str | None]:
        with read_only_unit() as session:
            return list(session.scalars(select(SignedAttempt.refusal).order_by(SignedAttempt.id)))

    settlement.record_refusal(transaction_id, "0x2", "r" * 250)
    assert refusals() == [None, "r" * 40]
    assert row_of(transaction_id)[0].error == "r" * 200
    settlement.record_refusal(transaction_id, "0x2", None)
    assert refusals() == [None, None]
    assert row_of(transaction_id)[0].error is None
    assert settle(transaction_id, landed(REVERTED))
    settlement.record_refusal(transaction_id, "0x1", "late")
    assert row_of(transaction_id)[0].error == "reverted"
