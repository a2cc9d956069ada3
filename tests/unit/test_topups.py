"""Top-ups: granted once, what was received, when the transfer is final; closed without a grant when it failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from sqlalchemy import delete, select

from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.credits import accounts
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.payments import audit, claimed_payments, topups
from app.payments.models import PaymentClaim, TopUp
from app.ports.errors import Unreachable
from app.ports.facilitator import IncomingPayment
from app.state import Application
from app.wallets.core import lifecycle
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import Transaction, TransactionEvent

BASE = ChainName.BASE
CONFIRMED, FAILED, PENDING = MovementStatus.CONFIRMED, MovementStatus.FAILED, MovementStatus.PENDING
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)


@dataclass
class Treasury:
    """A facilitator that knows what each transaction paid to the treasury, and an account."""

    account_id: str = field(default_factory=new_id)
    incoming: dict[str, IncomingPayment] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)

    def incoming_payment(self, tx_hash: str, recipient: str) -> IncomingPayment | None:
        self.asked.append((tx_hash, recipient))
        if tx_hash == "0xunreachable":
            raise Unreachable("refused")
        return self.incoming.get(tx_hash)

    def receives(self, tx_hash: str, units: int, *, succeeded: bool = True, is_final: bool = True) -> None:
        self.incoming[tx_hash] = IncomingPayment(tx_hash, succeeded, units, frozenset(), (), 0, is_final)

    def granted_nanos(self) -> int:
        with read_only_unit() as session:
            return accounts.balance(session, self.account_id).granted_nanos


@pytest.fixture
def treasury(build_app: Callable[..., Application], sqlite_url: str) -> Iterator[Treasury]:
    made = Treasury()
    app = build_app(sqlite_url, facilitators={BASE: made, ChainName.ETHEREUM: made})
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
        return [finding for finding in audit.check(session) if "top-up" in finding or "topup" in finding]


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

    def has_open(chain: ChainName) -> bool:
        with read_only_unit() as session:
            return bool(session.scalar(select(topups.has_open(chain))))

    assert topups.grant_due(BASE) == 1
    assert (refusal(wallet_id), refusal(other)) == ({"transaction_id": pending}, None)
    assert (has_open(BASE), has_open(ChainName.ETHEREUM)) == (True, False)
    treasury.receives("0x1", 5)
    assert topups.grant_due(BASE) == 1
    assert (refusal(wallet_id), has_open(BASE)) == (None, False)


def test_the_oldest_top_ups_are_granted_first(treasury: Treasury) -> None:
    for minutes in (2, 0, 1):
        added(treasury, f"0x{minutes}", created_at=NOON + timedelta(minutes=minutes))
    topups.grant_due(BASE)
    assert [tx_hash for tx_hash, _ in treasury.asked] == ["0x0", "0x1", "0x2"]
