"""Top-ups: granted once, what was received, before it is final within limits; what cannot land after all is owed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from threading import Barrier
from typing import Any, cast

import pytest
import time_machine
from flask import current_app
from sqlalchemy import delete, select, update

from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.credits import accounts, holds
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.payments import claimed_payments, jobs, topups
from app.payments.models import PaymentClaim, TopUp
from app.ports.errors import Unreachable
from app.ports.facilitator import IncomingPayment
from app.state import Application
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import Transaction, TransactionEvent
from tests.support.ledger import race

BASE = ChainName.BASE
CONFIRMED, FAILED, PENDING = MovementStatus.CONFIRMED, MovementStatus.FAILED, MovementStatus.PENDING
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Treasury:
    """A facilitator that knows what each transaction paid to the treasury, and an account."""

    account_id: str = field(default_factory=new_id)
    incoming: dict[str, IncomingPayment] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    meeting: Barrier | None = None

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        self.asked.append((tx_hash, recipient))
        if self.meeting is not None:
            self.meeting.wait(30)
        if tx_hash == "0xunreachable":
            raise Unreachable("refused")
        return self.incoming.get(tx_hash)

    def receives(self, tx_hash: str, units: int, *, succeeded: bool = True, is_final: bool = True) -> None:
        self.incoming[tx_hash] = IncomingPayment(tx_hash, succeeded, units, frozenset(), (), 0, is_final)

    def granted_nanos(self) -> int:
        with read_only_unit() as session:
            return accounts.balance(session, self.account_id).granted_nanos

    def balance(self) -> tuple[int, int]:
        with read_only_unit() as session:
            found = accounts.balance(session, self.account_id)
        return found.available_nanos, found.held_nanos


@pytest.fixture
def treasury(build_app: Callable[..., Application], request: pytest.FixtureRequest) -> Iterator[Treasury]:
    made = Treasury()
    limits = {"topup_unfinal_usd": Decimal("0.000013"), "topup_unfinal_usd_per_agent": Decimal("0.00001")}
    database_url = request.getfixturevalue(getattr(request, "param", "sqlite_url"))
    app = build_app(database_url, facilitators={BASE: made, ChainName.ETHEREUM: made}, settings=limits)
    with app.app_context(), time_machine.travel(NOON, tick=False):
        with unit_of_work() as session:
            accounts.open_account(session, made.account_id)
        yield made
        # The transfers of these tests have no wallets and no holds.
        with db.engine.begin() as connection:
            for table in (TransactionEvent, Transaction):
                connection.execute(delete(table))


def added(treasury: Treasury, tx_hash: str | None, *, status: MovementStatus = CONFIRMED, **different: Any) -> str:
    """Add a top-up of 5 units; its transfer is final."""
    values = {"next_check_at": None, "wallet_id": new_id(), "created_at": NOON, "chain": "base", **different}
    transaction = Transaction(
        id=new_id(), type="transfer", kind="topup", from_address="0xa", to_address="0xt", currency="USDC",
        amount_units=5, cost_nanos=0, checks=0, tx_hash=tx_hash, **values,
    )  # fmt: skip
    with unit_of_work() as session:
        lifecycle.record(session, transaction, status=status)
        session.add(
            TopUp(
                transaction_id=transaction.id, wallet_id=transaction.wallet_id, account_id=treasury.account_id,
                chain=transaction.chain, recipient="0xt", units=5, created_at=transaction.created_at,
            )
        )  # fmt: skip
    return transaction.id


def state_of(transaction_id: str) -> tuple[int | None, datetime | None]:
    with read_only_unit() as session:
        row = session.get_one(TopUp, transaction_id)
        return row.granted_nanos, row.closed_at


def audited() -> list[str]:
    with read_only_unit() as session:
        return [finding for finding in jobs.check(session) if "top-up" in finding or "topup" in finding]


def is_open(chain: ChainName) -> bool:
    with read_only_unit() as session:
        return bool(session.scalar(select(topups.has_open(chain))))


def test_the_amount_received_is_granted_once(treasury: Treasury) -> None:
    whole, less, more = (added(treasury, tx_hash) for tx_hash in ("0x1", "0x2", "0x3"))
    treasury.receives("0x1", 5)
    treasury.receives("0x2", 4)
    treasury.receives("0x3", 9)
    assert topups.grant_due(ChainName.ETHEREUM) == 0
    assert topups.grant_due(BASE) == 3
    assert [state_of(each) for each in (whole, less, more)] == [(5_000, NOON), (4_000, NOON), (5_000, NOON)]
    assert treasury.asked == [("0x1", "0xt"), ("0x2", "0xt"), ("0x3", "0xt")]
    assert topups.grant_due(BASE) == 0
    assert treasury.granted_nanos() == 14_000
    assert audited() == []
    with read_only_unit() as session:
        # It pays the treasury as a payment for a call does, and must not be accepted as one.
        claimed = [claimed_payments.transaction_claim_key(BASE, tx_hash) for tx_hash in ("0x1", "0x2", "0x3")]
        assert set(session.scalars(select(PaymentClaim.key))) == set(claimed)


def test_a_transfer_that_is_not_final_or_not_readable_is_closed_later_and_delays_no_other(treasury: Treasury) -> None:
    waiting = [
        added(treasury, "0xunknown"),
        added(treasury, "0xunreachable"),
        added(treasury, "0xearly"),
        added(treasury, "0xpending", status=PENDING),
        added(treasury, "0xrecent", next_check_at=NOON),
    ]
    final = added(treasury, "0x1")
    treasury.receives("0xearly", 5, is_final=False)
    treasury.receives("0x1", 5)
    assert topups.grant_due(BASE) == 1
    assert state_of(final) == (5_000, NOON)
    assert [state_of(each) for each in waiting] == [(None, None)] * 5
    treasury.receives("0xearly", 5)
    assert topups.grant_due(BASE) == 1
    assert treasury.granted_nanos() == 10_000


def test_a_failed_transfer_grants_nothing_and_may_be_reopened(treasury: Treasury) -> None:
    failed, reverted, unsent = (
        added(treasury, "0xf", status=FAILED), added(treasury, "0xr"), added(treasury, None, status=FAILED),
    )  # fmt: skip
    treasury.receives("0xr", 5, succeeded=False)
    assert topups.grant_due(BASE) == 3
    assert [state_of(each) for each in (failed, reverted, unsent)] == [(0, NOON)] * 3
    assert treasury.asked == [("0xr", "0xt")]
    assert treasury.granted_nanos() == 0
    assert audited() == [f"top-up {reverted} is final and confirmed, and granted nothing"]
    treasury.receives("0xr", 5)
    with unit_of_work() as session:
        for each in (failed, reverted, new_id()):
            topups.reopen_grant(session, each)
    assert [state_of(each) for each in (failed, reverted, unsent)] == [(None, None), (None, None), (0, NOON)]
    assert topups.grant_due(BASE) == 2
    with unit_of_work() as session:
        # What was granted once stays so.
        topups.reopen_grant(session, reverted)
    assert state_of(reverted) == (5_000, NOON)
    assert treasury.granted_nanos() == 5_000


def test_a_wallet_cannot_be_deleted_while_one_of_its_top_ups_is_open(treasury: Treasury) -> None:
    wallet_id, other = new_id(), new_id()
    pending = added(treasury, "0x1", wallet_id=wallet_id)
    added(treasury, "0x2", status=FAILED, wallet_id=other)
    treasury.receives("0x2", 5)

    def refusal(of: str) -> Any:
        with read_only_unit() as session:
            found = topups.open_topup_error(session, of)
            return found and found.details

    assert topups.grant_due(BASE) == 1
    assert (refusal(wallet_id), refusal(other)) == ({"transaction_id": pending}, None)
    assert (is_open(BASE), is_open(ChainName.ETHEREUM)) == (True, False)
    treasury.receives("0x1", 5)
    assert topups.grant_due(BASE) == 1
    assert (refusal(wallet_id), is_open(BASE)) == (None, False)


def test_the_oldest_top_ups_are_granted_first(treasury: Treasury) -> None:
    for minutes in (2, 0, 1):
        added(treasury, f"0x{minutes}", created_at=NOON + timedelta(minutes=minutes))
    topups.grant_due(BASE)
    assert [tx_hash for tx_hash, _ in treasury.asked] == ["0x0", "0x1", "0x2"]


def decide(transaction_id: str, status: MovementStatus, *, next_check_at: datetime | None) -> None:
    """Set what a worker finds out about a transfer."""
    with unit_of_work() as session:
        row = session.get_one(Transaction, transaction_id)
        lifecycle.TRANSACTIONS.move(session, row.id, MovementStatus(row.status), status, reason=None)
        session.get_one(Transaction, transaction_id).next_check_at = next_check_at


def owed_nanos(transaction_id: str) -> int:
    with read_only_unit() as session:
        return session.get_one(TopUp, transaction_id).owed_nanos


def test_a_confirmed_transfer_is_granted_at_once_and_closed_when_it_is_final(treasury: Treasury) -> None:
    early = added(treasury, "0x1", next_check_at=NOON)
    treasury.receives("0x1", 5, is_final=False)
    assert topups.grant_due(BASE) == 0
    assert (state_of(early), treasury.granted_nanos()) == ((5_000, None), 5_000)
    assert topups.grant_due(BASE) == 0
    decide(early, PENDING, next_check_at=NOON)
    assert topups.grant_due(BASE) == 0
    assert (state_of(early), treasury.granted_nanos()) == ((5_000, None), 5_000)
    decide(early, CONFIRMED, next_check_at=None)
    assert topups.grant_due(BASE) == 0
    treasury.receives("0x1", 5)
    assert topups.grant_due(BASE) == 1
    assert (state_of(early), owed_nanos(early), treasury.granted_nanos()) == ((5_000, NOON), 0, 5_000)
    assert audited() == []


def test_grants_that_are_not_final_stay_within_the_limits_of_an_agent_and_of_all(treasury: Treasury) -> None:
    other = new_id()
    with unit_of_work() as session:
        accounts.open_account(session, other)
    for number in range(1, 6):
        added(treasury, f"0x{number}", next_check_at=NOON, created_at=NOON + timedelta(seconds=number))
        treasury.receives(f"0x{number}", 5 if number != 5 else 4, is_final=False)
    with unit_of_work() as session:
        for row in session.scalars(select(TopUp).order_by(TopUp.created_at).offset(3)):
            row.account_id = other
    topups.grant_due(BASE)
    with read_only_unit() as session:
        granted = [row.granted_nanos for row in session.scalars(select(TopUp).order_by(TopUp.created_at))]
    # Of the agent's three the last exceeds its limit; of the other's two the limit of all.
    assert granted == [5_000, 5_000, None, None, None]
    with unit_of_work() as session:
        session.execute(update(Transaction).values(next_check_at=None))
    for number in range(1, 6):
        treasury.receives(f"0x{number}", 5)
    assert topups.grant_due(BASE) == 5
    assert treasury.granted_nanos() == 15_000


def test_a_grant_for_what_cannot_land_after_all_is_owed_and_repaid_by_later_credits(treasury: Treasury) -> None:
    lost = added(treasury, "0x1", next_check_at=NOON)
    treasury.receives("0x1", 5, is_final=False)
    topups.grant_due(BASE)
    hold_id = new_id()
    with unit_of_work() as session:
        holds.hold(session, treasury.account_id, 2_000, hold_id=hold_id, lease=timedelta(hours=1))
    decide(lost, PENDING, next_check_at=NOON)
    decide(lost, FAILED, next_check_at=NOON)
    topups.grant_due(BASE)
    # It may still be reorganised back: nothing is taken before that is final.
    assert (state_of(lost), owed_nanos(lost)) == ((5_000, None), 0)
    with unit_of_work() as session:
        session.execute(update(Transaction).values(next_check_at=None))
    assert topups.grant_due(BASE) == 1
    assert (state_of(lost), owed_nanos(lost)) == ((0, NOON), 5_000)
    with read_only_unit() as session:
        assert topups.owed_nanos(session, treasury.account_id) == 5_000
        assert topups.owed_nanos(session, new_id()) == 0
    assert audited() == []
    assert is_open(BASE)
    topups.grant_due(BASE)
    assert (owed_nanos(lost), treasury.balance()) == (2_000, (0, 2_000))
    # What is owed waits for credits, and keeps no worker busy.
    assert not is_open(BASE)
    assert audited() == []
    next_one = added(treasury, "0x2")
    treasury.receives("0x2", 5)
    topups.grant_due(BASE)
    topups.grant_due(BASE)
    assert (state_of(next_one), owed_nanos(lost), treasury.balance()) == ((5_000, NOON), 0, (3_000, 2_000))
    with unit_of_work() as session:
        holds.release(session, hold_id)
    assert audited() == []


def test_what_was_taken_back_is_granted_again_if_it_landed_after_all(treasury: Treasury) -> None:
    lost = added(treasury, "0x1", next_check_at=NOON)
    treasury.receives("0x1", 5, is_final=False)
    topups.grant_due(BASE)
    decide(lost, PENDING, next_check_at=NOON)
    decide(lost, FAILED, next_check_at=None)
    for _ in range(2):
        topups.grant_due(BASE)
    assert (treasury.granted_nanos(), owed_nanos(lost)) == (0, 0)
    decide(lost, PENDING, next_check_at=NOON)
    with unit_of_work() as session:
        topups.reopen_grant(session, lost)
    decide(lost, CONFIRMED, next_check_at=None)
    treasury.receives("0x1", 5)
    topups.grant_due(BASE)
    assert (state_of(lost), treasury.granted_nanos()) == ((5_000, NOON), 5_000)
    assert audited() == []


@pytest.mark.parametrize("treasury", ["postgres_url"], indirect=True)
def test_concurrent_workers_grant_each_top_up_once_and_exceed_no_limit(treasury: Treasury) -> None:
    early = [added(treasury, f"0x{number}", next_check_at=NOON) for number in range(8)]
    with unit_of_work() as session:
        session.execute(update(TopUp).values(units=3))
    for number in range(8):
        treasury.receives(f"0x{number}", 3, is_final=False)
    app = cast("Application", current_app)._get_current_object()  # type: ignore[attr-defined]
    assert race(app, [lambda: topups.grant_due(BASE)] * 6) == [0] * 6
    # Three of 3 000 fit into 10 000.
    assert sorted(str(state_of(each)[0]) for each in early) == ["3000"] * 3 + ["None"] * 5
    assert treasury.granted_nanos() == 9_000
    with unit_of_work() as session:
        session.execute(update(Transaction).values(next_check_at=None))
    for number in range(8):
        treasury.receives(f"0x{number}", 3)
    assert sum(race(app, [lambda: topups.grant_due(BASE)] * 6)) == 8  # type: ignore[arg-type]
    assert treasury.granted_nanos() == 24_000
    assert audited() == []


@pytest.mark.parametrize("treasury", ["postgres_url"], indirect=True)
def test_the_workers_of_two_chains_do_not_exceed_the_limit_of_all_together(treasury: Treasury) -> None:
    chains = (BASE, ChainName.ETHEREUM)
    app = cast("Application", current_app)._get_current_object()  # type: ignore[attr-defined]
    added(treasury, "0x0", next_check_at=NOON)
    treasury.receives("0x0", 5, is_final=False)
    topups.grant_due(BASE)
    for number in range(5):
        both = [added(treasury, f"0x{number}{chain}", chain=chain.value, next_check_at=NOON) for chain in chains]
        with unit_of_work() as session:
            for each in both:
                accounts.open_account(session, other := new_id())
                session.get_one(TopUp, each).account_id = other
        treasury.meeting = Barrier(2)
        for chain in chains:
            treasury.receives(f"0x{number}{chain}", 5, is_final=False)
        race(app, [partial(topups.grant_due, chain) for chain in chains])
        treasury.meeting = None
        # With the first one, one more of 5 000 fits into 13 000.
        assert sorted(str(state_of(each)[0]) for each in both) == ["5000", "None"]
        with unit_of_work() as session:
            session.execute(update(Transaction).where(Transaction.id.in_(both)).values(next_check_at=None))
        for chain in chains:
            treasury.receives(f"0x{number}{chain}", 5)
            topups.grant_due(chain)


def test_a_top_up_that_waits_for_a_limit_is_not_looked_up_on_the_chain(treasury: Treasury) -> None:
    for number in range(3):
        added(treasury, f"0x{number}", next_check_at=NOON, created_at=NOON + timedelta(seconds=number))
        treasury.receives(f"0x{number}", 5, is_final=False)
    topups.grant_due(BASE)
    treasury.asked.clear()
    topups.grant_due(BASE)
    assert treasury.asked == []
