"""Funding requests on Solana, fulfilled by real deposits once these are finalized."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask

from app.core.chains import ChainName
from app.wallets.deposits import scanner
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.faults import FaultyChain
from tests.support.solana import (
    CONFIRMED,
    FINALIZED,
    LAMPORTS,
    fund_solana,
    running_solana,
    solana_address,
    solana_chain,
)

pytestmark = pytest.mark.chain


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    """A node of this test's own, on which slots advance only when a test says so."""
    with running_solana(slot_ms=0) as started:
        started.advance(FINALIZED)
        yield started


@dataclass(frozen=True, slots=True)
class Stage:
    """An agent without a lamport."""

    agent: Agent
    chain: FaultyChain
    node: SolanaNode

    def ask(self, amount: str, currency: str, agent: Agent | None = None) -> dict[str, Any]:
        """Request a deposit, and advance time so that what follows is later."""
        asker = agent or self.agent
        answer = asker.post(f"{asker.wallet_url}/fund", {"amount": amount, "currency": currency, "chain": "solana"})
        assert answer.status_code == 200, answer.get_json()
        asked: dict[str, Any] = answer.get_json()
        assert asked["deposit_address"] == asker.solana_address
        self.node.advance(CONFIRMED)
        return asked

    def find(self, slots: int = FINALIZED) -> int:
        """Advance time and run the scan."""
        self.node.advance(slots)
        return scanner.scan(ChainName.SOLANA)

    def row(self, request: dict[str, Any], agent: Agent | None = None) -> dict[str, Any]:
        return (agent or self.agent).transaction(request["funding_request_id"])

    def status(self, *requests: dict[str, Any]) -> list[str]:
        return [self.row(request)["status"] for request in requests]

    def move(self, amount: str, currency: str, to: str) -> None:
        """Send a transfer from the wallet, and confirm it."""
        body = self.agent.move(amount, currency, chain="solana", to=to).get_json()
        assert body.get("status") == "pending", body
        self.node.advance(CONFIRMED)


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str, node: SolanaNode) -> Iterator[Stage]:
    chain = FaultyChain(solana_chain(node))
    app = build_app(sqlite_url, chains={ChainName.SOLANA: chain}, settings={"confirmation_wait_seconds": "0"})
    with app.app_context():
        yield Stage(register(app.test_client()), chain, node)


@pytest.mark.parametrize(("currency", "amount"), [("SOL", "0.125"), ("USDC", "3.25")])
def test_a_real_deposit_confirms_the_request_once_it_is_final_and_not_before(
    currency: str, amount: str, stage: Stage
) -> None:
    asked = stage.ask(amount, currency)
    if currency == "SOL":
        tx_hash = stage.node.airdrop(stage.agent.solana_address, LAMPORTS // 8)
    else:
        tx_hash = stage.node.mint_usdc(stage.agent.solana_address, 3_250_000)
    assert stage.find(CONFIRMED) == 0
    assert stage.status(asked) == ["pending"]
    assert stage.find() == 1
    entry = stage.row(asked)
    assert (entry["status"], entry["tx_hash"]) == ("confirmed", tx_hash)
    assert entry["from_address"]
    assert [event["status"] for event in entry["events"]] == ["pending", "confirmed"]
    assert stage.find() == 0
    assert stage.agent.spent_this_month() == 0


def test_deposits_add_up_with_or_without_an_existing_token_account(stage: Stage) -> None:
    first = stage.ask("10", "USDC")
    stage.node.mint_usdc(stage.agent.solana_address, 4_000_000)
    assert stage.find() == 1
    stage.node.mint_usdc(stage.agent.solana_address, 5_999_999)
    assert stage.find() == 1
    assert stage.status(first) == ["pending"]
    last = stage.node.mint_usdc(stage.agent.solana_address, 2_000_001)
    stage.node.advance(CONFIRMED)
    second = stage.ask("2", "USDC")
    assert stage.find() == 1
    # The remainder came before the second request was made.
    assert (stage.row(first)["tx_hash"], stage.status(first, second)) == (last, ["confirmed", "pending"])


def test_a_deposit_before_the_request_does_not_count_even_if_it_is_finalized_later(stage: Stage) -> None:
    stage.node.mint_usdc(stage.agent.solana_address, 5_000_000)
    stage.node.airdrop(stage.agent.solana_address, LAMPORTS)
    stage.node.advance(CONFIRMED)
    asked = [stage.ask("5", "USDC"), stage.ask("1", "SOL")]
    stage.find()
    assert stage.status(*asked) == ["pending", "pending"]


def test_many_deposits_between_two_scans_are_all_found_in_order(stage: Stage) -> None:
    requests = [stage.ask("0.1", "SOL") for _ in range(12)]
    hashes = []
    for _ in requests:
        hashes.append(stage.node.airdrop(stage.agent.solana_address, LAMPORTS // 10))
        stage.node.advance(1)
    while stage.find():
        pass
    assert [stage.row(request)["tx_hash"] for request in requests] == hashes


def test_own_movements_are_not_deposits_and_do_not_reduce_one(stage: Stage) -> None:
    fund_solana(stage.node, stage.agent.solana_address, sol=1, dollars=20)
    stage.agent.unlimited()
    sol, dollars = stage.ask("0.5", "SOL"), stage.ask("5", "USDC")
    stage.move("0.1", "SOL", stage.agent.solana_address)
    stage.move("15", "USDC", stage.agent.solana_address)
    stage.move("0.2", "SOL", solana_address())
    stage.find()
    assert stage.status(sol, dollars) == ["pending", "pending"]
    stage.node.airdrop(stage.agent.solana_address, LAMPORTS // 2)
    stage.node.advance(1)
    stage.move("0.1", "SOL", solana_address())
    stage.move("1", "USDC", solana_address())
    stage.find()
    assert stage.status(sol, dollars) == ["confirmed", "pending"]


def test_a_payment_from_another_wallet_of_the_service_is_a_deposit(stage: Stage) -> None:
    payee = register(stage.agent.client)
    fund_solana(stage.node, stage.agent.solana_address, sol=1, dollars=20)
    asked = stage.ask("7", "USDC", payee)
    stage.move("7", "USDC", payee.solana_address)
    assert stage.find() == 3  # with what the payer held before
    entry = stage.row(asked, payee)
    assert (entry["status"], entry["from_address"]) == ("confirmed", stage.agent.solana_address)


def test_a_wallet_flooded_with_dust_does_not_hide_another_wallet_s_deposit(stage: Stage) -> None:
    victim, other = stage.agent, register(stage.agent.client)
    flooded, waiting = stage.ask("5", "SOL", victim), stage.ask("1", "SOL", other)
    for _ in range(150):
        stage.node.airdrop(victim.solana_address, 1_000_000)
    stage.node.airdrop(other.solana_address, LAMPORTS)
    for _ in range(5):
        stage.find()
        if stage.row(waiting, other)["status"] == "confirmed":
            break
    assert stage.row(waiting, other)["status"] == "confirmed"
    assert stage.row(flooded, victim)["status"] == "pending"


@pytest.mark.parametrize("verb", ["getSignaturesForAddress", "getTransaction"])
def test_a_node_that_fails_during_a_scan_loses_and_duplicates_no_deposit(verb: str, stage: Stage) -> None:
    asked = stage.ask("3", "USDC")
    for _ in range(3):
        stage.node.mint_usdc(stage.agent.solana_address, 1_000_000)
        stage.node.advance(1)
    stage.node.faults(http={verb: [503, 429]})
    stage.find()
    stage.node.faults()
    for _ in range(3):
        stage.find()
    assert stage.status(asked) == ["confirmed"]
    assert stage.find() == 0
