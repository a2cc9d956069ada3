"""Confirmation of Solana movements by workers: dropped, late, expired, failed on the chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask
from solders.account import Account
from solders.pubkey import Pubkey
from solders.token.associated import get_associated_token_address
from sqlalchemy import select

from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.transactions import confirmation
from solana_node import SolanaNode
from solana_node.addresses import USDC_MINT
from tests.support import backups
from tests.support.agents import Agent, register
from tests.support.evm import proxy, spoil
from tests.support.faults import FaultyChain
from tests.support.solana import (
    CONFIRMED,
    FINALIZED,
    LAMPORTS,
    fund_solana,
    held,
    running_solana,
    solana_address,
    solana_chain,
)
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
VALID_BLOCKS = 150
SPENT = 2.305892
"""2 USDC, and the rent of the recipient's token account."""


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    """A node of this test's own, on which slots advance only when a test says so."""
    with running_solana(slot_ms=0) as started:
        # Long enough ago for the node to have recorded all that could have landed.
        started.advance(1000)
        yield started


@dataclass(slots=True)
class Stage:
    """An agent with 1 SOL and 20 USDC, and the worker's pass."""

    agent: Agent
    chain: FaultyChain
    node: SolanaNode
    to: str
    later: timedelta = field(default_factory=timedelta)

    def send(self, amount: str = "2", currency: str = "USDC", **options: Any) -> str:
        """Send a transfer and return the id of the pending transaction."""
        body = self.agent.move(amount, currency, chain="solana", to=self.to, options=options).get_json()
        assert body["status"] == "pending", body
        identifier: str = body["transaction_id"]
        return identifier

    def look(self) -> confirmation.ConfirmationPass:
        """Run the worker, each time a minute later, when everything is due again."""
        self.later += timedelta(minutes=1)
        with time_machine.travel(clock.now() + self.later, tick=True):
            return confirmation.confirm(ChainName.SOLANA)

    def received(self) -> tuple[int, int]:
        return held(solana_chain(self.node), self.to)

    def status(self, transaction_id: str) -> tuple[str, str | None]:
        row = self.agent.transaction(transaction_id)
        return row["status"], row["error"]


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, node: SolanaNode) -> Iterator[Stage]:
    chain = FaultyChain(solana_chain(node))
    app = build_app(sqlite_url, chains={ChainName.SOLANA: chain}, settings={"confirmation_wait_seconds": "0"})
    with app.app_context():
        agent = register(app.test_client())
        fund_solana(node, agent.solana_address, sol=1, dollars=20)
        yield Stage(agent, chain, node, solana_address())


def _signed() -> list[bytes]:
    with read_only_unit() as session:
        return list(session.scalars(select(SignedAttempt.raw).order_by(SignedAttempt.id)))


def test_a_pending_transfer_is_confirmed_by_a_worker_once_and_checked_until_final(stage: Stage) -> None:
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED)
    assert stage.look().settled == 1
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.look().settled == 0
    stage.node.advance(FINALIZED)
    stage.look()
    with read_only_unit() as session:
        assert list(session.scalars(select(Transaction.next_check_at))) == [None]
    assert stage.look().checked == 0
    assert stage.agent.spent_this_month() == SPENT


def test_a_dropped_transaction_is_rebroadcast_unchanged(stage: Stage) -> None:
    stage.node.faults(drop=2)
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED)
    assert stage.look().rebroadcast == 1
    stage.node.advance(CONFIRMED)
    assert stage.look().rebroadcast == 1
    stage.node.advance(CONFIRMED)
    stage.look()
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.received() == (0, 2_000_000)
    assert len(_signed()) == 1


def test_an_expired_transfer_fails_once_its_height_is_final_and_is_never_signed_again(stage: Stage) -> None:
    stage.node.faults(drop=10**6)
    transaction_id = stage.send()
    stage.node.advance(VALID_BLOCKS + 10)
    stage.look()
    assert stage.status(transaction_id)[0] == "pending"
    assert stage.agent.spent_this_month() == SPENT
    stage.node.advance(FINALIZED)
    stage.node.faults()
    stage.look()
    assert stage.status(transaction_id) == ("failed", "expired")
    assert stage.agent.spent_this_month() == 0
    stage.chain.real.rebroadcast(_signed())
    stage.node.advance(FINALIZED)
    stage.look()
    assert (stage.status(transaction_id), len(_signed())) == (("failed", "expired"), 1)
    assert stage.received() == (0, 0)


def test_a_transfer_is_not_failed_while_it_may_have_landed(stage: Stage) -> None:
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED + VALID_BLOCKS + FINALIZED)
    with proxy(stage.node.url) as between:
        # The node has no history as far back as the blockhash.
        stage.chain.real = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[between.url])
        unknown = spoil("getSignatureStatuses", {"context": {"slot": 2**40}, "value": [None]})
        between.after = lambda calls, replies: spoil("getFirstAvailableBlock", 2**40)(calls, unknown(calls, replies))
        stage.look()
        assert (stage.status(transaction_id), len(_signed())) == (("pending", None), 1)
    stage.chain.real = solana_chain(stage.node)
    stage.look()
    assert (stage.status(transaction_id), len(_signed())) == (("confirmed", None), 1)


def test_a_transaction_that_lands_just_before_expiry_is_not_failed(stage: Stage) -> None:
    stage.node.faults(delay_slots=VALID_BLOCKS - 5)
    transaction_id = stage.send()
    for _ in range(4):
        stage.node.advance(FINALIZED)
        stage.look()
    stage.node.advance(FINALIZED)
    stage.look()
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.received() == (0, 2_000_000)


def test_a_halted_cluster_is_waited_for_and_the_transfer_lands_once(stage: Stage) -> None:
    transaction_id = stage.send()
    stage.later += timedelta(hours=1)
    for _ in range(5):
        assert stage.look().settled == 0
    assert stage.status(transaction_id)[0] == "pending"
    assert stage.agent.spent_this_month() == SPENT
    stage.node.advance(CONFIRMED)
    stage.look()
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.received() == (0, 2_000_000)
    assert len(_signed()) == 1


def test_a_transfer_that_fails_on_the_chain_keeps_its_hash_and_releases_the_hold(stage: Stage) -> None:
    stage.node.faults(delay_slots=5)
    first = stage.send("15")
    # Another holder of the key spends the money: here by a movement that the service does not know.
    stage.node.faults()
    _take_all_usdc(stage)
    stage.node.advance(10)
    stage.look()
    assert stage.status(first) == ("failed", "reverted")
    row = stage.agent.transaction(first)
    assert row["tx_hash"]
    assert stage.agent.spent_this_month() == 0
    assert stage.received() == (0, 0)


def _take_all_usdc(stage: Stage) -> None:
    owner = Pubkey.from_string(stage.agent.solana_address)
    account = get_associated_token_address(owner, Pubkey.from_string(USDC_MINT))
    stage.node.set_account(account, Account(0, b"", Pubkey.default()))


def test_a_transfer_settled_concurrently_by_a_worker_is_not_deducted_twice(stage: Stage) -> None:
    first = stage.send("12")
    stage.node.advance(CONFIRMED)
    stage.chain.fail("outcomes", "before", stage.look)
    second = stage.send("8")
    stage.node.advance(CONFIRMED)
    stage.look()
    assert [stage.status(each)[0] for each in (first, second)] == ["confirmed", "confirmed"]
    assert stage.received() == (0, 20_000_000)


def test_a_final_movement_of_unknown_fee_is_no_longer_tracked(stage: Stage) -> None:
    with proxy(stage.node.url) as between:
        between.after = spoil("getTransaction", None)
        stage.chain.real = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[between.url])
        transaction_id = stage.send()
        stage.node.advance(CONFIRMED)
        stage.look()
        assert stage.status(transaction_id) == ("confirmed", None)
        stage.node.advance(FINALIZED)
        stage.look()
        assert stage.look().checked == 0


def test_a_landed_transaction_that_nodes_have_pruned_is_still_tracked(stage: Stage) -> None:
    with proxy(stage.node.url) as between:
        stage.chain.real = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[between.url])
        stage.send()
        stage.node.advance(CONFIRMED)
        assert stage.look().settled == 1
        stage.node.advance(FINALIZED)
        between.after = lambda calls, replies: spoil("getBlock", None)(
            calls, spoil("getSignatureStatuses", {"context": {"slot": 2**40}, "value": [None]})(calls, replies)
        )
        stage.look()
        assert stage.look().checked == 1
        between.after = lambda _calls, replies: replies
        stage.look()
        stage.look()
        assert stage.look().checked == 0


@pytest.mark.parametrize("status", [429, 503])
def test_an_error_response_of_the_node_changes_nothing(status: int, stage: Stage) -> None:
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED)
    stage.node.faults(http={"getSignatureStatuses": [status] * 5, "getEpochInfo": [status] * 5})
    assert stage.look().settled == 0
    assert stage.status(transaction_id)[0] == "pending"
    stage.node.faults()
    # After a `Retry-After`, the endpoint is not used for about a second.
    wait_until(lambda: stage.look().settled == 1)
    assert stage.status(transaction_id) == ("confirmed", None)


def test_equal_payments_with_one_blockhash_are_separate_payments(stage: Stage) -> None:
    stage.agent.unlimited()
    ids = [stage.send("0.01", "SOL") for _ in range(20)]
    assert len(set(_signed())) == 20
    stage.node.advance(CONFIRMED)
    assert stage.look().settled == 20
    assert {stage.status(identifier)[0] for identifier in ids} == {"confirmed"}
    assert stage.received() == (LAMPORTS // 5, 0)


def test_a_transaction_that_landed_after_a_backup_is_confirmed_and_not_paid_again(
    stage: Stage, build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    transaction_id = stage.send()
    backup = backups.dump(sqlite_url, tmp_path / "backup")
    stage.node.advance(FINALIZED)
    assert stage.look().settled == 1
    stage.send("3")
    stage.node.advance(FINALIZED)
    assert stage.received() == (0, 5_000_000)
    set_back = f"sqlite:///{tmp_path / 'restored.sqlite'}"
    backups.restore(backup, set_back)
    app = build_app(set_back, chains={ChainName.SOLANA: stage.chain}, settings={"confirmation_wait_seconds": "0"})
    with app.app_context():
        again = Stage(replace(stage.agent, client=app.test_client()), stage.chain, stage.node, stage.to)
        done = app.test_cli_runner().invoke(args=["restored"])
        assert (done.exit_code, done.output.count("solana")) == (0, 1), done.output
        again.look()
        assert again.status(transaction_id) == ("confirmed", None)
        assert [row["amount"] for row in again.agent.history(kind="recovered")] == ["3"]
        assert again.received() == (0, 5_000_000)
