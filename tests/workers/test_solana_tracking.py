"""Solana movements whose end is found by workers: dropped, late, lost on the way, expired, failed on the chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path

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
from app.core.unit_of_work import reading
from app.wallets import tracking
from app.wallets.models import SignedAttempt, Transaction
from sandbox.solana import SolanaNode
from sandbox.solana.addresses import USDC_MINT
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


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    """A node of this test's own, on which time stands still until a test lets slots pass."""
    with running_solana(slot_ms=0) as started:
        # Long enough ago for the node to have on record all that could have landed.
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

    def send(self, amount: str = "2", currency: str = "USDC") -> str:
        """Send and return the id of what is pending then."""
        body = self.agent.move(amount, currency, chain="solana", to=self.to).get_json()
        assert body["status"] == "pending", body
        identifier: str = body["transaction_id"]
        return identifier

    def look(self) -> tracking.Pass:
        """Let the worker look, each time five seconds later, when everything is due again."""
        self.later += timedelta(seconds=5)
        with time_machine.travel(clock.now() + self.later, tick=True):
            return tracking.confirm(ChainName.SOLANA)

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
    with reading() as session:
        return list(session.scalars(select(SignedAttempt.raw)))


def test_a_pending_transfer_is_confirmed_by_a_worker_once_and_looked_at_until_it_is_final(
    stage: Stage,
) -> None:
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED)
    assert stage.look().settled == 1
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.look().settled == 0
    stage.node.advance(FINALIZED)
    stage.look()
    with reading() as session:
        assert list(session.scalars(select(Transaction.next_check_at))) == [None]
    assert stage.look().looked_at == 0
    assert stage.agent.spent_today() == 2


def test_what_the_cluster_dropped_is_sent_again_byte_for_byte(stage: Stage) -> None:
    stage.node.faults(drop=2)
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED)
    assert stage.look().sent_again == 1
    stage.node.advance(CONFIRMED)
    assert stage.look().sent_again == 1
    stage.node.advance(CONFIRMED)
    stage.look()
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.received() == (0, 2_000_000)
    assert len(_signed()) == 1


def test_what_never_landed_fails_only_when_its_height_is_final_and_is_given_back(stage: Stage) -> None:
    stage.node.faults(drop=10**6)
    transaction_id = stage.send()
    stage.node.advance(VALID_BLOCKS + 10)
    stage.look()
    assert stage.status(transaction_id)[0] == "pending"
    assert stage.agent.spent_today() == 2
    stage.node.advance(FINALIZED)
    stage.look()
    assert stage.status(transaction_id) == ("failed", "expired")
    assert stage.agent.spent_today() == 0
    assert len(_signed()) == 1
    stage.node.faults()
    raw = _signed()[0]
    stage.chain.real.rebroadcast([raw])
    stage.node.advance(FINALIZED)
    assert stage.received() == (0, 0)


def test_what_lands_in_the_last_moment_before_it_expires_is_not_declared_failed(stage: Stage) -> None:
    stage.node.faults(delay_slots=VALID_BLOCKS - 5)
    transaction_id = stage.send()
    for _ in range(4):
        stage.node.advance(FINALIZED)
        stage.look()
    stage.node.advance(FINALIZED)
    stage.look()
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.received() == (0, 2_000_000)


def test_a_cluster_that_stands_still_for_an_hour_is_waited_for_and_lands_it_once(stage: Stage) -> None:
    transaction_id = stage.send()
    stage.later += timedelta(hours=1)
    for _ in range(5):
        assert stage.look().settled == 0
    assert stage.status(transaction_id)[0] == "pending"
    assert stage.agent.spent_today() == 2
    stage.node.advance(CONFIRMED)
    stage.look()
    assert stage.status(transaction_id) == ("confirmed", None)
    assert stage.received() == (0, 2_000_000)
    assert len(_signed()) == 1


def test_a_transfer_that_the_chain_executes_and_refuses_fails_with_its_hash_and_is_given_back(
    stage: Stage,
) -> None:
    stage.node.faults(delay_slots=5)
    first = stage.send("15")
    # Somebody with the same key takes the money meanwhile: here another movement that the service does not see.
    stage.node.faults()
    _take_all_usdc(stage)
    stage.node.advance(10)
    stage.look()
    assert stage.status(first) == ("failed", "reverted")
    row = stage.agent.transaction(first)
    assert row["tx_hash"]
    assert stage.agent.spent_today() == 0
    assert stage.received() == (0, 0)


def _take_all_usdc(stage: Stage) -> None:
    owner = Pubkey.from_string(stage.agent.solana_address)
    account = get_associated_token_address(owner, Pubkey.from_string(USDC_MINT))
    stage.node.set_account(account, Account(0, b"", Pubkey.default()))


def test_what_a_worker_settles_at_the_same_moment_is_not_counted_twice_against_the_balance(
    stage: Stage,
) -> None:
    first = stage.send("12")
    stage.node.advance(CONFIRMED)
    stage.chain.fail("outcomes", "before", stage.look)
    second = stage.send("8")
    stage.node.advance(CONFIRMED)
    stage.look()
    assert [stage.status(each)[0] for each in (first, second)] == ["confirmed", "confirmed"]
    assert stage.received() == (0, 20_000_000)


def test_a_movement_whose_fee_no_node_can_tell_is_let_go_of_once_it_is_final(stage: Stage) -> None:
    with proxy(stage.node.url) as between:
        between.after = spoil("getTransaction", None)
        stage.chain.real = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[between.url])
        transaction_id = stage.send()
        stage.node.advance(CONFIRMED)
        stage.look()
        assert stage.status(transaction_id) == ("confirmed", None)
        stage.node.advance(FINALIZED)
        stage.look()
        assert stage.look().looked_at == 0


def test_what_landed_and_cannot_be_shown_any_more_is_not_let_go_of(stage: Stage) -> None:
    with proxy(stage.node.url) as between:
        stage.chain.real = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[between.url])
        stage.send()
        stage.node.advance(CONFIRMED)
        assert stage.look().settled == 1
        stage.node.advance(FINALIZED)
        between.after = lambda calls, replies: spoil("getBlock", None)(
            calls,
            spoil("getSignatureStatuses", {"context": {"slot": 2**40}, "value": [None]})(calls, replies),
        )
        stage.look()
        assert stage.look().looked_at == 1
        between.after = lambda _calls, replies: replies
        stage.look()
        stage.later += timedelta(seconds=30)
        stage.look()
        assert stage.look().looked_at == 0


@pytest.mark.parametrize("status", [429, 503])
def test_a_node_that_refuses_to_answer_changes_nothing(status: int, stage: Stage) -> None:
    transaction_id = stage.send()
    stage.node.advance(CONFIRMED)
    stage.node.faults(http={"getSignatureStatuses": [status] * 5, "getEpochInfo": [status] * 5})
    assert stage.look().settled == 0
    assert stage.status(transaction_id)[0] == "pending"
    stage.node.faults()
    # An endpoint that asked for it is left alone for a second or so.
    wait_until(lambda: stage.look().settled == 1)
    assert stage.status(transaction_id) == ("confirmed", None)


def test_many_equal_payments_in_one_blockhash_are_as_many_payments(stage: Stage) -> None:
    stage.agent.unlimited()
    ids = [stage.send("0.01", "SOL") for _ in range(20)]
    assert len(set(_signed())) == 20
    stage.node.advance(CONFIRMED)
    assert stage.look().settled == 20
    assert {stage.status(identifier)[0] for identifier in ids} == {"confirmed"}
    assert stage.received() == (LAMPORTS // 5, 0)


def test_what_landed_after_a_backup_is_confirmed_by_its_own_bytes_and_not_paid_again(
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
    app = build_app(
        set_back, chains={ChainName.SOLANA: stage.chain}, settings={"confirmation_wait_seconds": "0"}
    )
    with app.app_context():
        again = Stage(replace(stage.agent, client=app.test_client()), stage.chain, stage.node, stage.to)
        done = app.test_cli_runner().invoke(args=["restored"])
        assert (done.exit_code, "solana" in done.output) == (0, False), done.output
        again.look()
        assert again.status(transaction_id) == ("confirmed", None)
        assert again.received() == (0, 5_000_000)
