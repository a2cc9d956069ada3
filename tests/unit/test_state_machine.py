"""State machines: what is not in the table does not happen, and of concurrent transitions one has an effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from sqlalchemy import delete, select, update

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import TRANSACTIONS, MovementStatus, TransactionType
from app.wallets.core.models import Transaction, TransactionEvent
from tests.support.ledger import race
from tests.support.logs import written_logs

PENDING, CONFIRMED, FAILED = MovementStatus.PENDING, MovementStatus.CONFIRMED, MovementStatus.FAILED


@pytest.fixture
def app(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Flask]:
    app = build_app(each_database_url)
    with app.app_context():
        yield app
        with unit_of_work() as session:
            session.execute(delete(TransactionEvent))
            session.execute(delete(Transaction))


def pending() -> str:
    transaction = Transaction(
        id=new_id(), wallet_id=new_id(), type=TransactionType.FUNDING.value, chain="base", to_address="0x",
        amount_units=1, currency="ETH", cost_nanos=0, created_at=clock.now(), checks=0,
    )  # fmt: skip
    with unit_of_work() as session:
        lifecycle.record(session, transaction, status=PENDING)
    return transaction.id


def stored(transaction_id: str) -> tuple[str, list[str]]:
    with read_only_unit() as session:
        status = session.scalar(select(Transaction.status).where(Transaction.id == transaction_id))
        events = select(TransactionEvent.status).where(TransactionEvent.transaction_id == transaction_id)
        return str(status), list(session.scalars(events.order_by(TransactionEvent.id)))


def fail_in_unit(transaction_id: str) -> None:
    with unit_of_work() as session:
        TRANSACTIONS.move(session, transaction_id, PENDING, FAILED, reason="expired")
        raise RuntimeError


@pytest.mark.usefixtures("app")
def test_a_transition_that_is_not_in_the_table_is_refused() -> None:
    transaction_id = pending()
    with unit_of_work() as session:
        for source, target in ((CONFIRMED, FAILED), (PENDING, PENDING), ({PENDING, CONFIRMED}, CONFIRMED)):
            with pytest.raises(ValueError, match="no transition"):
                TRANSACTIONS.move(session, transaction_id, source, target)
    assert stored(transaction_id) == ("pending", ["pending"])


@pytest.mark.usefixtures("app")
def test_a_row_in_another_state_is_left_alone_without_event_and_log_line() -> None:
    transaction_id = pending()
    with written_logs() as lines:
        with unit_of_work() as session:
            assert TRANSACTIONS.move(session, transaction_id, CONFIRMED, PENDING) == []
            assert TRANSACTIONS.move(session, Transaction.amount_units == 2, PENDING, FAILED) == []
        assert lines() == []
    assert stored(transaction_id) == ("pending", ["pending"])


@pytest.mark.usefixtures("app")
def test_a_transition_stores_an_event_and_logs_after_the_commit_only() -> None:
    transaction_id = pending()
    with written_logs() as lines:
        with pytest.raises(RuntimeError):
            fail_in_unit(transaction_id)
        assert lines() == []
        with unit_of_work() as session:
            session.execute(update(Transaction).values(request_id="r-1"))
            assert TRANSACTIONS.move(session, transaction_id, PENDING, FAILED, reason="expired", checks=3) == [
                transaction_id
            ]
            assert lines() == []
        [line] = lines()
    expected = {"transaction_id": transaction_id, "status": "failed", "reason": "expired", "chain": "base"}
    assert expected.items() <= line.items()
    assert (line["event"], line["caused_by"]) == ("transaction_status_changed", "r-1")
    assert stored(transaction_id) == ("failed", ["pending", "failed"])
    with read_only_unit() as session:
        row = session.get_one(Transaction, transaction_id)
        assert (row.error, row.checks) == ("expired", 3)


def test_of_concurrent_transitions_one_has_an_effect(app: Flask) -> None:
    transaction_id = pending()

    def move() -> list[str]:
        with unit_of_work() as session:
            return TRANSACTIONS.move(session, transaction_id, PENDING, CONFIRMED)

    moved = race(app, [move] * 4)
    assert sorted(map(str, moved)) == sorted(["[]", "[]", "[]", str([transaction_id])])
    assert stored(transaction_id) == ("confirmed", ["pending", "confirmed"])


@pytest.mark.usefixtures("app")
def test_a_movement_that_is_no_longer_pending_is_not_quarantined() -> None:
    transaction_id = pending()
    with unit_of_work() as session:
        session.execute(update(Transaction).values(quarantined_at=clock.now()))
        TRANSACTIONS.move(session, transaction_id, PENDING, CONFIRMED)
    with read_only_unit() as session:
        assert session.get_one(Transaction, transaction_id).quarantined_at is None
