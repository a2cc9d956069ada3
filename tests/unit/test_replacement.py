"""What is signed again, and up to which fee; the chain is a stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from flask import Flask
from sqlalchemy import delete

from app.core import clock
from app.core.chains import ETH, SOL, ChainName
from app.core.identifiers import new_id
from app.core.money import TokenAmount
from app.db.unit_of_work import unit_of_work
from app.ports.chain import SignedTransaction, TransactionDraft, TransferIntent
from app.ports.errors import Rejected, Unreachable
from app.wallets.core import custody, lifecycle, network_fees, wallets
from app.wallets.core.lifecycle import AttemptPurpose, MovementStatus
from app.wallets.core.models import SignedAttempt, Transaction, TransactionEvent, Wallet
from app.wallets.transactions import open_transactions, replacement
from app.wallets.transactions.open_transactions import OpenMovement

NONCE, MAXIMUM = 4, 1_000_000
ON_BASE = {"chain": "base", "currency": "ETH", "nonce": NONCE, "max_fee_nanos": MAXIMUM}
ON_SOLANA = {"chain": "solana", "currency": "SOL"}


@pytest.fixture(autouse=True)
def _app(app: Flask, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An application in which a unit of a fee costs one nano; the rows have no agents and are removed at the end."""
    monkeypatch.setattr(network_fees, "nanos", lambda _chain, units: units)
    with app.app_context():
        yield
        with unit_of_work() as session:
            for table in (TransactionEvent, SignedAttempt, Transaction, Wallet):
                session.execute(delete(table))


def pending(*, signed: int = 1, purpose: AttemptPurpose = AttemptPurpose.PAYMENT, **values: Any) -> OpenMovement:
    """Record a pending movement that was signed some times, and return it as a worker reads it."""
    chain = ChainName(values["chain"])
    transaction = Transaction(
        id=new_id(), type="transfer", from_address="from", to_address="to", amount_units=5, cost_nanos=0, checks=3,
        fee_cap_units=3, next_check_at=clock.now(), created_at=clock.now(), **values,
    )  # fmt: skip
    key = custody.new_key()
    with unit_of_work() as session:
        transaction.wallet_id = wallets.create(session, new_id(), key, name=None).id
        lifecycle.record(session, transaction, status=MovementStatus.PENDING)
        for _ in range(signed):
            bytes_ = SignedTransaction(new_id(), b"raw", transaction.nonce, None, {})
            lifecycle.add_attempt(session, transaction.id, chain, bytes_, purpose)
    (movement,), _unreadable = open_transactions.due(chain, clock.now())
    return movement


def chain_at(name: ChainName, fee_units: int) -> Any:
    token = ETH if name is ChainName.BASE else SOL
    nonce = NONCE if name is ChainName.BASE else None
    chain = Mock()
    chain.name = name
    drafted = TransactionDraft(TransferIntent("from", "to", TokenAmount(5, token)), fee_units, 9, 9, nonce, {})
    for draft in (chain.draft, chain.draft_replacement, chain.draft_cancellation):
        draft.return_value = drafted
    chain.sign.return_value = SignedTransaction("newest", b"newest", nonce, 77, {})
    return chain


def test_a_payment_is_not_replaced_above_the_network_fee_that_its_request_allows() -> None:
    movement = pending(**ON_BASE)
    above = chain_at(ChainName.BASE, MAXIMUM + 1)
    assert not replacement.replace_stuck(above, movement)
    assert (above.sign.called, above.broadcast.called) == (False, False)
    assert replacement.replace_stuck(chain_at(ChainName.BASE, MAXIMUM), movement)


def test_a_request_without_a_maximum_is_replaced_up_to_the_operators() -> None:
    assert replacement.replace_stuck(
        chain_at(ChainName.BASE, MAXIMUM + 1), pending(**ON_BASE | {"max_fee_nanos": None})
    )


def test_a_cancellation_may_cost_more_than_the_request_allows() -> None:
    chain = chain_at(ChainName.BASE, MAXIMUM + 1)
    chain.draft_replacement.side_effect = Rejected("deadline_passed")
    assert replacement.replace_stuck(chain, pending(**ON_BASE))
    assert chain.broadcast.called


def test_the_replacement_of_a_cancellation_may_cost_more_than_the_request_allows() -> None:
    movement = pending(purpose=AttemptPurpose.CANCELLATION, **ON_BASE)
    assert replacement.replace_stuck(chain_at(ChainName.BASE, MAXIMUM + 1), movement)


@pytest.mark.parametrize(
    ("signed", "values"),
    [
        (1, {}),
        (1, {"kind": "topup"}),
        (1, {"kind": "gas"}),
        (1, {"kind": "x402"}),
        (1, {"kind": "gas_sale", "chain": "base", "currency": "ETH", "nonce": NONCE}),
        (20, {"kind": "gas_sale"}),
    ],
    ids=["a transfer", "a top-up", "a payment for gas", "an x402 payment", "with a nonce", "signed twenty times"],
)
def test_what_is_void_is_not_signed_again(signed: int, values: dict[str, Any]) -> None:
    movement = pending(signed=signed, **ON_SOLANA | values)
    chain = chain_at(movement.chain, 1)
    assert not replacement.deliver_again(chain, movement)
    assert chain.mock_calls == []


def test_sold_gas_is_delivered_by_other_bytes_when_the_former_are_void() -> None:
    movement = pending(signed=19, kind="gas_sale", **ON_SOLANA)
    chain = chain_at(ChainName.SOLANA, 8)
    chain.draft.side_effect = [Unreachable("chain_unreachable"), chain.draft.return_value]
    # It waits for a cluster that cannot be read.
    assert replacement.deliver_again(chain, movement)
    assert not chain.sign.called
    assert replacement.deliver_again(chain, movement)
    chain.draft.assert_called_with(movement.intent)
    chain.broadcast.assert_called_once_with(b"newest")
    with unit_of_work() as session:
        row = session.get_one(Transaction, movement.id)
        assert (row.tx_hash, row.expires_at_height, row.checks, row.fee_cap_units) == ("newest", 77, 0, 8)
    # A worker that read the row before signs nothing.
    assert replacement.deliver_again(late := chain_at(ChainName.SOLANA, 8), movement)
    assert not late.sign.called


def test_a_delivery_that_is_certainly_refused_fails() -> None:
    chain = chain_at(ChainName.SOLANA, 8)
    chain.draft.side_effect = Rejected("insufficient_funds")
    assert not replacement.deliver_again(chain, pending(kind="gas_sale", **ON_SOLANA))
