"""Queries for movements, each with rows that differ in one column from those that it looks for."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import delete, select

from app.core.chains import ETH, USDC, ChainName, Token
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import NotFound
from app.ports.chain import SignedTransaction, StoredTransaction, TransactionDraft, TransferIntent
from app.wallets.core import custody, lifecycle, wallets
from app.wallets.core.lifecycle import MovementStatus
from app.wallets.core.models import SignedAttempt, Transaction, TransactionEvent
from app.wallets.transactions import open_transactions, pipeline, relayed, settlement
from app.wallets.transactions.pipeline import NotAffordable

PENDING, CONFIRMED, FAILED = MovementStatus.PENDING, MovementStatus.CONFIRMED, MovementStatus.FAILED
BASE, SOLANA = ChainName.BASE, ChainName.SOLANA
SENDER, OTHER = "0xa", "0xb"
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


@pytest.fixture(autouse=True)
def _app(app: Flask) -> Iterator[None]:
    """An application at noon; the rows of these tests have no wallets, so they are removed before its audit."""
    with app.app_context(), time_machine.travel(NOON, tick=False):
        yield
        with unit_of_work() as session:
            for table in (TransactionEvent, SignedAttempt, Transaction):
                session.execute(delete(table))


def added(status: MovementStatus = PENDING, *, hashes: tuple[str, ...] | None = None, **different: Any) -> str:
    """Add a movement of 5 units of USDC on Base, with signed bytes, or those of some hashes."""
    values = {
        "wallet_id": new_id(), "type": "transfer", "chain": "base", "from_address": SENDER, "currency": "USDC",
        "amount_units": 5, "fee_cap_units": 3, "next_check_at": NOON, "created_at": NOON, **different,
    }  # fmt: skip
    transaction = Transaction(id=new_id(), to_address="0xc", cost_nanos=0, checks=0, **values)
    with unit_of_work() as session:
        lifecycle.record(session, transaction, status=status)
        for tx_hash in (new_id(),) if hashes is None else hashes:
            signed = SignedTransaction(tx_hash, b"raw", transaction.nonce, None, {})
            lifecycle.add_attempt(session, transaction.id, ChainName(transaction.chain), signed)
    return transaction.id


def outflows(chain: ChainName = BASE, *, nonce: int | None = None, block: int | None = None) -> Any:
    with read_only_unit() as session:
        sent, fees = settlement.outflows(session, SENDER, chain, since_sequence=nonce, since_block=block)
    return {token.symbol: units for token, units in sent.items()}, fees


def test_what_is_unmined_leaves_the_balance_of_one_address_on_one_chain() -> None:
    added(nonce=6)
    added(nonce=7)
    added(CONFIRMED, nonce=8, currency="ETH")
    # What failed moved nothing, but may have paid its fee.
    added(FAILED, nonce=9)
    added(nonce=7, from_address=OTHER)
    added(nonce=7, chain="ethereum")
    added(nonce=10, fee_cap_units=None)
    # Another party may submit it at any time.
    added(fee_cap_units=0)
    assert outflows(nonce=7) == ({"USDC": 10, "ETH": 5}, 9)
    assert outflows(nonce=8) == ({"USDC": 5, "ETH": 5}, 6)
    assert outflows(nonce=11) == ({"USDC": 5}, 0)


def test_without_nonces_what_is_pending_or_landed_later_is_unmined() -> None:
    on_solana = {"chain": "solana"}
    added(**on_solana)
    added(CONFIRMED, block_number=11, **on_solana)
    added(FAILED, block_number=11, **on_solana)
    added(CONFIRMED, block_number=10, **on_solana)
    added(FAILED, **on_solana)
    added(fee_cap_units=None, **on_solana)
    added(nonce=1, **on_solana)
    assert outflows(SOLANA, block=10) == ({"USDC": 10}, 9)
    assert outflows(SOLANA, block=11) == ({"USDC": 5}, 3)
    assert outflows(SOLANA) == ({"USDC": 15}, 12)


def affordable(token: Token, units: int, *, tokens: int, natives: int) -> Any:
    """Return None if balances cover a movement with a fee of 7 after the nonce 4; otherwise why not."""
    amount = TokenAmount(units, token)
    draft = TransactionDraft(TransferIntent(SENDER, "0xc", amount), 7, natives, tokens, 4, {})
    try:
        with read_only_unit() as session:
            pipeline.assert_affordable(session, BASE, draft)
    except NotAffordable as refusal:
        return refusal.reason, refusal.details
    return None


def test_a_movement_needs_what_unmined_ones_leave_to_the_last_unit() -> None:
    assert affordable(USDC, 20, tokens=20, natives=7) is None
    assert affordable(USDC, 20, tokens=19, natives=7)[0] == "insufficient_funds"
    assert affordable(USDC, 20, tokens=20, natives=6)[0] == "insufficient_gas"
    added(nonce=4)
    added(nonce=5, currency="ETH", amount_units=100)
    # 5 units and 100 wei are under way, and twice a fee of 3.
    assert affordable(USDC, 20, tokens=25, natives=113) is None
    missing = {"available": "0.000024", "required": "0.000025", "missing": "0.000001", "currency": "USDC"}
    assert affordable(USDC, 20, tokens=24, natives=113) == ("insufficient_funds", missing)
    reason, details = affordable(USDC, 20, tokens=25, natives=112)
    assert (reason, details["currency"], details["missing"]) == (
        "insufficient_gas", "ETH", "0.000000000000000001",
    )  # fmt: skip
    assert affordable(ETH, 20, tokens=133, natives=133) is None
    reason, details = affordable(ETH, 20, tokens=132, natives=132)
    assert (reason, details["required"]) == ("insufficient_funds", "0.000000000000000133")


def test_unmined_swaps_of_a_token_are_counted_between_two_nonces() -> None:
    for nonce in range(3, 8):
        added(nonce=nonce, type="swap")
    added(nonce=8, type="swap", currency="ETH")
    added(nonce=9)
    added(nonce=5, type="swap", chain="ethereum")
    added(nonce=5, type="swap", from_address=OTHER)

    def counted(since: int, before: int) -> int:
        with read_only_unit() as session:
            return settlement.count_swaps(session, SENDER, BASE, "USDC", since_sequence=since, before_sequence=before)

    assert (counted(4, 7), counted(0, 99), counted(5, 5)) == (3, 5, 0)


def test_the_lowest_nonce_of_each_sender_is_that_of_a_pending_movement() -> None:
    added(CONFIRMED, nonce=1)
    added(nonce=4)
    added(nonce=3)
    added(nonce=2, quarantined_at=NOON)
    added(nonce=1, chain="ethereum")
    added(nonce=7, from_address=OTHER)
    added(nonce=1, from_address="0xe")
    added(from_address="0xf")
    assert open_transactions.lowest_nonces(BASE, [SENDER, OTHER, "0xf"]) == {SENDER: 3, OTHER: 7}
    assert open_transactions.lowest_nonces(BASE, []) == {}


def test_due_movements_are_found_in_their_order_on_their_chain() -> None:
    later = added(nonce=1, hashes=("0x1", "0x2"))
    first = added(CONFIRMED, nonce=2, next_check_at=NOON - SECOND, block_number=9, block_hash="0x9")
    unreadable = added(nonce=3, hashes=(), next_check_at=NOON - 2 * SECOND)
    added(nonce=4, next_check_at=NOON + SECOND)
    added(nonce=5, next_check_at=None)
    added(nonce=6, quarantined_at=NOON)

    def has_due(chain: ChainName, now: datetime) -> bool:
        with read_only_unit() as session:
            return bool(session.scalar(select(open_transactions.has_due(chain, now))))

    assert has_due(BASE, NOON)
    assert not has_due(BASE, NOON - 3 * SECOND)
    assert not has_due(ChainName.ETHEREUM, NOON)
    assert open_transactions.due(ChainName.ETHEREUM, NOON) == ([], [])
    (landed, replaced), broken = open_transactions.due(BASE, NOON)
    assert (landed.id, replaced.id) == (first, later)
    assert [(row.id, row.chain, row.checks) for row in broken] == [(unreadable, BASE, 0)]
    assert (landed.lacks_fee, replaced.lacks_fee, replaced.expires_at_height) == (True, False, None)
    assert replaced.query.tx_hashes == ("0x1", "0x2")
    intent = TransferIntent(SENDER, "0xc", TokenAmount(5, USDC))
    assert replaced.attempt() == StoredTransaction(intent, "0x2", b"raw", 1, {})


def test_pending_movements_without_a_nonce_are_found_by_their_sender() -> None:
    on_solana = {"chain": "solana"}
    second = added(**on_solana)
    first = added(created_at=NOON - SECOND, **on_solana)
    added(from_address=OTHER, **on_solana)
    added(CONFIRMED, **on_solana)
    added(block_number=1, **on_solana)
    added(nonce=1, **on_solana)
    added(fee_cap_units=None, **on_solana)
    added(hashes=(), **on_solana)
    added()
    assert [each.id for each in open_transactions.pending_of(SENDER, SOLANA)] == [first, second]


def test_movements_that_unknown_bytes_may_have_displaced_are_found_in_the_order_of_their_nonces() -> None:
    taken = added(FAILED, nonce=2, error="slot_taken")
    pending = added(nonce=1)
    other = added(nonce=1, from_address=OTHER)
    added(FAILED, nonce=3, error="reverted")
    added(CONFIRMED, nonce=4)
    added()
    added(nonce=1, chain="ethereum")
    assert [each.id for each in open_transactions.possibly_displaced(BASE)] == [pending, taken, other]


def test_our_own_hashes_are_recognised_on_their_chain_only() -> None:
    added(kind="topup", hashes=("0x1", "0x2"), tx_hash="0x3")
    added(hashes=("0x4",), nonce=9)

    def kind(chain: ChainName, tx_hash: str) -> str | None:
        with read_only_unit() as session:
            return relayed.kind_of(session, chain, tx_hash)

    assert [kind(BASE, tx_hash) for tx_hash in ("0x1", "0x2", "0x3", "0x4", "0x5")] == ["topup"] * 3 + [None] * 2
    assert kind(ChainName.ETHEREUM, "0x1") is None


def test_a_status_is_final_once_its_block_is() -> None:
    def final(*arguments: Any, **different: Any) -> MovementStatus | None:
        transaction_id = added(*arguments, **different)
        with read_only_unit() as session:
            found = relayed.final_decision(session, transaction_id)
        return None if found is None else found.status

    assert final(FAILED, next_check_at=None) is FAILED
    assert final(CONFIRMED, next_check_at=None) is CONFIRMED
    assert final(CONFIRMED) is None
    assert final(next_check_at=None) is None
    with read_only_unit() as session:
        assert relayed.final_decision(session, new_id()) is None


def test_the_hashes_of_submissions_that_finally_failed_are_those_of_one_agent_and_kind() -> None:
    owner, keys = new_id(), [custody.new_key() for _ in range(2)]
    with unit_of_work() as session:
        of_owner, of_other = (
            wallets.create(session, agent_id, key, name=None).id
            for agent_id, key in zip((owner, new_id()), keys, strict=True)
        )
    final = {"next_check_at": None, "kind": "settlement", "wallet_id": of_owner}
    added(FAILED, hashes=("0x1", "0x2"), **final)
    added(FAILED, hashes=("0x3",), **{**final, "created_at": NOON - SECOND})
    added(FAILED, hashes=("0x4",), **{**final, "wallet_id": of_other})
    added(FAILED, hashes=("0x5",), **{**final, "kind": "opening"})
    added(FAILED, hashes=("0x6",), **{**final, "next_check_at": NOON})
    added(FAILED, hashes=("0x7",), **{**final, "chain": "ethereum"})
    added(CONFIRMED, hashes=("0x8",), **final)

    def failed(since: datetime) -> set[str]:
        with read_only_unit() as session:
            return set(relayed.failed_hashes(session, owner, BASE, kind="settlement", since=since))

    assert failed(NOON) == {"0x1", "0x2"}
    assert failed(NOON - SECOND) == {"0x1", "0x2", "0x3"}


def test_a_query_to_the_exchange_moves_and_costs_nothing() -> None:
    key = custody.new_key()
    with unit_of_work() as session:
        wallet_id = wallets.create(session, new_id(), key, name=None).id
    transaction_id = relayed.record_query(wallet_id, address=SENDER, kind="status")
    with read_only_unit() as session:
        row = session.get_one(Transaction, transaction_id)
    assert (row.type, row.kind, row.chain, row.from_address) == ("trading_query", "status", "perpdex", SENDER)
    assert (row.amount_units, row.cost_nanos, row.checks) == (0, 0, 0)
    assert (row.status, row.confirmed_at, row.next_check_at) == ("confirmed", NOON, None)
    with pytest.raises(NotFound):
        relayed.record_query(new_id(), address=SENDER, kind="status")
