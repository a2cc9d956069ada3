"""Confirmation of difficult movements: poisonous rows, temporary refusals, unknown fees."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from eth_utils.crypto import keccak
from sqlalchemy import event, text, update

from app.adapters.prices import MarketPriceFeed
from app.core import clock
from app.core.chains import ETH, ChainName
from app.core.money import TokenAmount
from app.db.unit_of_work import unit_of_work
from app.extensions import db
from app.ports.errors import Rejected, Unreachable
from app.wallets.core import custody, network_fees
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import open_transactions, replacement, settlement
from app.wallets.transactions.open_transactions import OpenMovement
from tests.support import rows
from tests.support.agents import register
from tests.support.applications import change_ports
from tests.support.chains import RECIPIENT, ether, fund, usdc
from tests.support.stages import Stage

pytestmark = pytest.mark.chain


@contextmanager
def _poisoned(transaction_id: str) -> Iterator[None]:
    """Let the database (SQLite, where ids have no hyphens) refuse every change of a movement's state."""
    stored = transaction_id.replace("-", "")
    with unit_of_work() as session:
        session.execute(
            text(
                "CREATE TRIGGER poison BEFORE UPDATE OF status ON transactions"
                f" WHEN NEW.id = '{stored}' BEGIN SELECT RAISE(ABORT, 'poison'); END"
            )
        )
    yield
    with unit_of_work() as session:
        session.execute(text("DROP TRIGGER poison"))


def _change(transaction_id: str, **values: object) -> None:
    with unit_of_work() as session:
        session.execute(update(Transaction).where(Transaction.id == transaction_id).values(**values))


def _change_attempt(transaction_id: str, **values: object) -> None:
    with unit_of_work() as session:
        session.execute(update(SignedAttempt).where(SignedAttempt.transaction_id == transaction_id).values(**values))
    rows.accept()


def _moves(stage: Stage, how_many: int) -> list[str]:
    return [stage.agent.move("1", "USDC").get_json()["transaction_id"] for _ in range(how_many)]


def _open() -> list[OpenMovement]:
    found, _unreadable = open_transactions.due(ChainName.BASE, clock.now() + timedelta(hours=1))
    return found


def _wait_in_vain(stage: Stage) -> None:
    """Let what is pending be seen and then wait for longer than the service's patience, unmined."""
    stage.look()
    stage.node.mine(4)


def _unmined(stage: Stage, amount: str = "2", currency: str = "USDC") -> str:
    """Make a movement that no node holds, whatever is done to bring it there."""
    stage.agent.unlimited()
    stage.node.set_automine(False)
    body = stage.agent.move(amount, currency).get_json()
    stage.node.rpc("anvil_dropTransaction", body["tx_hash"])
    stage.chain.raising("rebroadcast", "before", Unreachable("dropped"), times=9)
    return str(body["transaction_id"])


def test_a_movement_that_cannot_be_settled_does_not_block_others(stage: Stage) -> None:
    bad, *good = _moves(stage, 3)
    with _poisoned(bad):
        assert stage.look().settled == 2
        assert [stage.agent.transaction(each)["status"] for each in good] == ["confirmed", "confirmed"]
        assert stage.row(bad).checks == 1, "it is looked at again, but later"
    assert stage.look().settled == 1


def test_a_movement_that_cannot_be_reopened_does_not_block_others(stage: Stage) -> None:
    bad, _, _ = _moves(stage, 3)
    stage.look()
    stage.node.mine(1)
    stage.node.reorg(4)
    with _poisoned(bad):
        assert stage.look().reopened == 2
    assert stage.look().reopened == 1


def test_an_unreadable_row_does_not_block_others(stage: Stage) -> None:
    bad, good = _moves(stage, 2)
    _change(bad, currency="FLORIN")
    assert stage.look().settled == 1
    _change(bad, currency="USDC")
    assert stage.agent.transaction(good)["status"] == "confirmed"
    assert stage.look().settled == 1


def test_a_movement_that_cannot_be_replaced_does_not_stop_a_pass(stage: Stage) -> None:
    bad = _unmined(stage)
    _change_attempt(bad, terms={})
    _wait_in_vain(stage)
    done = stage.look()
    assert (done.checked, done.replaced) == (1, 0)


def test_a_pass_that_runs_out_of_time_still_rebroadcasts_and_resumes_later(stage: Stage) -> None:
    mined = _moves(stage, 3)
    stage.chain.raising("broadcast", "before", Unreachable("refused"))
    unsent = _moves(stage, 1)

    first = stage.look(seconds=0)

    assert (first.settled, first.rebroadcast) == (1, 1)
    assert stage.look().settled == len(mined) - 1 + len(unsent)


def test_a_temporary_refusal_cancels_no_payment(stage: Stage) -> None:
    transaction_id = _unmined(stage)
    settlement.record_refusal(transaction_id, stage.hashes()[0], "insufficient_funds")
    _wait_in_vain(stage)

    assert stage.look().replaced == 1

    assert [attempt.purpose for attempt in stage.attempts()] == ["payment", "payment"]
    assert stage.row(transaction_id).error is None
    stage.node.mine(1)
    stage.look()
    assert stage.agent.transaction(transaction_id)["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT) == usdc(2)


def test_a_payment_that_is_unaffordable_only_at_a_higher_fee_waits(stage: Stage) -> None:
    transaction_id = _unmined(stage, "0.5", "ETH")
    fee = stage.row(transaction_id).fee_cap_units or 0
    stage.node.rpc("anvil_setBalance", stage.agent.address, hex(ether(0.5) + fee))
    _wait_in_vain(stage)

    assert stage.look().replaced == 0

    assert [attempt.purpose for attempt in stage.attempts()] == ["payment"]
    stage.node.mine(1)
    stage.look()
    assert stage.agent.transaction(transaction_id)["status"] == "confirmed"
    assert stage.paid_to(RECIPIENT, ETH) == ether(0.5)


def test_a_payment_without_its_tokens_is_cancelled_even_if_no_node_refused_it(stage: Stage) -> None:
    transaction_id = _unmined(stage, "100", "USDC")
    _take_usdc_away(stage)
    _wait_in_vain(stage)

    assert stage.look().replaced == 1

    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(transaction_id)
    assert (row["status"], row["error"]) == ("failed", "cancelled")


def _take_usdc_away(stage: Stage) -> None:
    """Empty the wallet's entry of `balanceAndBlacklistStates`, the tenth word of FiatTokenV2_2's storage."""
    entry = "0x" + keccak(bytes.fromhex(stage.agent.address[2:]).rjust(32, b"\0") + (9).to_bytes(32, "big")).hex()
    stage.node.rpc("anvil_setStorageAt", stage.node.deployment.usdc, entry, "0x" + "00" * 32)
    assert stage.paid_to(stage.agent.address) == 0


def test_permanently_refused_bytes_are_cancelled_and_later_nonces_proceed(stage: Stage) -> None:
    transaction_id = _unmined(stage)
    (movement,) = _open()
    draft = stage.chain.real.draft_replacement(movement.attempt())
    assert draft is not None
    impossible = dataclasses.replace(draft, terms={**draft.terms, "gas": 20_000})
    signed = stage.chain.real.sign(impossible, custody.signer_of(movement.wallet_id), sequence=movement.nonce)
    _change_attempt(
        transaction_id, raw=signed.raw, tx_hash=signed.tx_hash, terms=signed.terms, refusal="invalid_transaction"
    )
    _wait_in_vain(stage)

    assert stage.look().replaced == 1

    stage.node.mine(1)
    stage.look()
    row = stage.agent.transaction(transaction_id)
    assert (row["status"], row["error"]) == ("failed", "cancelled")
    stage.node.set_automine(True)
    (again,) = _moves(stage, 1)
    stage.look()
    assert stage.agent.transaction(again)["status"] == "confirmed"


def test_a_mined_nonce_is_not_signed_again(stage: Stage) -> None:
    stage.node.set_automine(False)
    _moves(stage, 1)
    (movement,) = _open()
    stage.node.mine(1)
    assert replacement.replace_stuck(stage.chain, movement) is False
    assert len(stage.hashes()) == 1


def test_the_fee_cap_is_the_highest_of_all_attempts(stage: Stage) -> None:
    transaction_id = _unmined(stage)
    _change(transaction_id, fee_cap_units=ether(0.9))
    _wait_in_vain(stage)
    assert stage.look().replaced == 1
    assert stage.row(transaction_id).fee_cap_units == ether(0.9)


def test_a_stuck_movement_is_replaced_while_no_price_is_known(stage: Stage) -> None:
    _unmined(stage)
    _wait_in_vain(stage)
    change_ports(stage.app, prices=MarketPriceFeed([], [], overrides={}))
    assert stage.look().replaced == 1


def test_without_a_price_fees_are_capped_at_an_assumed_high_price(stage: Stage) -> None:
    def assert_capped_at(units: int, refused_units: int) -> None:
        network_fees.assert_acceptable(ChainName.BASE, units)
        with pytest.raises(Rejected, match="network_fee_too_high"):
            network_fees.assert_acceptable(ChainName.BASE, refused_units)

    assert_capped_at(ether(0.0083), ether(0.0084))
    change_ports(stage.app, prices=MarketPriceFeed([], [], overrides={}))
    assert network_fees.usd_value_nanos(TokenAmount(1, ETH)) is None
    assert_capped_at(ether(0.00125), ether(0.00125) + 1)


def test_an_unknown_fee_is_polled_again(stage: Stage) -> None:
    (transaction_id,) = _moves(stage, 1)
    stage.look()
    expected = stage.row(transaction_id)
    _change(transaction_id, fee_units=None, native_out_units=None)
    stage.node.mine(20)

    stage.look()

    row = stage.row(transaction_id)
    assert (row.fee_units, row.native_out_units) == (expected.fee_units, expected.native_out_units)
    assert (expected.native_out_units or 0) > 0
    stage.look()
    assert stage.look().checked == 0


def test_the_lowest_nonces_of_all_stuck_wallets_are_read_in_one_query(stage: Stage) -> None:
    other = register(stage.app.test_client())
    fund(stage.node, other.address, eth=1, dollars=100)
    first = _unmined(stage)
    stage.agent.move("1", "USDC")
    hers = other.move("1", "USDC").get_json()
    stage.node.rpc("anvil_dropTransaction", hers["tx_hash"])
    _wait_in_vain(stage)
    asked: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        if "min(transactions.nonce)" in statement:
            asked.append(statement)

    event.listen(db.engine, "before_cursor_execute", note)
    assert stage.look().replaced == 2
    event.remove(db.engine, "before_cursor_execute", note)

    assert len(asked) == 1
    replaced = [attempt.transaction_id for attempt in stage.attempts()][3:]
    assert sorted(replaced) == sorted([first, hers["transaction_id"]]), "the lowest slot of each wallet"
