"""Swaps on a real Solana node with a simulated Jupiter: responses, records, limits and balances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask

from app.adapters.solana.chain import SolanaChain
from app.adapters.swaps.jupiter.exchange import JupiterExchange
from app.core.chains import SOL, USDC, ChainName
from app.core.money import TokenAmount, parse_amount
from app.ports.errors import OutcomeUnknown
from app.ports.swaps import ConcurrentOutflows, SwapRequest
from app.wallets.deposits import scanner
from app.wallets.transactions import confirmation
from sandbox.jupiter import JupiterFaults, JupiterServer
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.faults import FaultyChain
from tests.support.solana import FINALIZED, LAMPORTS, fund_solana, held, running_solana, solana_chain
from tests.support.solana_people import funded
from tests.support.swaps import swap

pytestmark = pytest.mark.chain


@pytest.fixture
def node() -> Iterator[SolanaNode]:
    """A node of this test's own, with short slots: tests move its pool."""
    with running_solana(slot_ms=20) as started:
        yield started


@pytest.fixture
def jupiter(node: SolanaNode) -> Iterator[JupiterServer]:
    server = JupiterServer(node.url)
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True, slots=True)
class Stage:
    """An agent with 2 SOL and 100 USDC on Solana, and a simulated Jupiter that can fail."""

    agent: Agent
    chain: FaultyChain
    real: SolanaChain
    node: SolanaNode
    jupiter: JupiterServer

    def swap(self, given: str, wanted: str, amount: object, **more: Any) -> Any:
        return swap(self.agent, given, wanted, amount, chain="solana", **more)

    def refused(self, given: str, wanted: str, amount: object, **more: Any) -> dict[str, Any]:
        answer = self.swap(given, wanted, amount, **more)
        body: dict[str, Any] = answer.get_json()
        assert (answer.status_code, body["code"]) == (500, "SWAP_FAILED"), body
        return body["details"]

    def held(self) -> tuple[int, int]:
        return held(self.real, self.agent.solana_address)

    def move_price(self) -> None:
        """Have another trader sell so much SOL that the pool price falls by 4 %."""
        trader = funded(self.node, lamports=30_000 * LAMPORTS)
        exchange = JupiterExchange(self.real, self.jupiter.url)
        ask = SwapRequest(trader.address, TokenAmount(20_000 * LAMPORTS, SOL), USDC, 500)
        draft = exchange.draft(exchange.quote(ask), minimum_units=1, signer=None)
        self.real.broadcast(exchange.sign(draft, trader, sequence=None, concurrent=ConcurrentOutflows()).raw)
        self.node.advance(2)


@pytest.fixture
def stage(
    build_app: Callable[..., Flask], sqlite_url: str, node: SolanaNode, jupiter: JupiterServer
) -> Iterator[Stage]:
    real = solana_chain(node)
    chain = FaultyChain(real)
    app = build_app(
        sqlite_url,
        chains={ChainName.SOLANA: chain},
        swap_exchanges={ChainName.SOLANA: JupiterExchange(real, jupiter.url)},
    )
    with app.app_context():
        agent = register(app.test_client())
        fund_solana(node, agent.solana_address, sol=2, dollars=100)
        yield Stage(agent, chain, real, node, jupiter)


def test_sol_and_usdc_are_swapped_with_the_exact_output_of_the_chain(stage: Stage) -> None:
    sol, dollars = stage.held()
    first = stage.swap("SOL", "USDC", "0.5").get_json()
    assert (first.get("status"), first["input_amount"], first["chain"]) == ("confirmed", "0.5", "solana"), first
    brought = parse_amount(first["output_amount"], USDC).units
    assert 74_000_000 < brought < 75_000_000
    after_sol, after_dollars = stage.held()
    assert after_dollars == dollars + brought
    assert 5_000 <= sol - LAMPORTS // 2 - after_sol < 100_000
    second = stage.swap("usdc", "sol", "30").get_json()
    assert second.get("status") == "confirmed", second
    returned = parse_amount(second["output_amount"], SOL).units
    last_sol, last_dollars = stage.held()
    assert last_dollars == after_dollars - 30_000_000
    assert 5_000 <= after_sol + returned - last_sol < 100_000
    row = stage.agent.transaction(second["transaction_id"])
    assert (row["type"], row["currency"], row["output_currency"]) == ("swap", "USDC", "SOL")
    spent = sum(entry["cost_usd"] for entry in stage.agent.history())
    assert stage.agent.spent_this_month() == pytest.approx(spent)
    assert 0 < spent < 2


def test_a_dry_run_returns_route_and_fees_and_signs_nothing(stage: Stage) -> None:
    before = stage.held()
    for given, wanted, amount in (("SOL", "USDC", "0.5"), ("USDC", "SOL", "30")):
        found = stage.swap(given, wanted, amount, dry_run=True).get_json()
        assert (found["dry_run"], found["route"], found["network_fee_currency"]) == (
            True, "Jupiter: Sandbox", "SOL",
        )  # fmt: skip
        assert float(found["network_fee"]) > 0
    assert stage.agent.history() == []
    assert stage.held() == before


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        (JupiterFaults(status=503), "quote_unavailable"),
        (JupiterFaults(status=429), "quote_rate_limited"),
        (JupiterFaults(body=b"<html>"), "quote_unavailable"),
        (JupiterFaults(seconds=9), "quote_unavailable"),
        (JupiterFaults(change=lambda answer: {**answer, "otherInstructions": [answer["swapInstruction"]]}),
         "unsafe_instructions"),
    ],
)  # fmt: skip
def test_a_failing_or_lying_service_moves_nothing_and_is_recorded(
    faults: JupiterFaults, reason: str, stage: Stage
) -> None:
    stage.jupiter.faults = faults
    before = stage.held()
    details = stage.refused("USDC", "SOL", "10")
    assert details["reason"] == reason
    row = stage.agent.transaction(details["transaction_id"])
    assert (row["status"], row["error"], row["tx_hash"]) == ("failed", reason, None)
    assert stage.held() == before
    assert stage.agent.spent_this_month() == 0
    stage.jupiter.faults = JupiterFaults()
    assert stage.swap("USDC", "SOL", "10").get_json()["status"] == "confirmed"


def test_a_dry_run_and_its_swap_share_a_quote_and_the_next_swap_gets_its_own(stage: Stage) -> None:
    stage.jupiter.requests = 0
    stage.swap("SOL", "USDC", "0.25", dry_run=True)
    assert stage.swap("SOL", "USDC", "0.25").get_json()["status"] == "confirmed"
    assert stage.jupiter.requests == 1
    assert stage.swap("SOL", "USDC", "0.25").get_json()["status"] == "confirmed"
    assert stage.jupiter.requests == 2


def test_a_swap_that_is_refused_by_a_rate_limit_states_when_to_retry(stage: Stage) -> None:
    stage.jupiter.faults = JupiterFaults(status=429)
    response = stage.swap("USDC", "SOL", "10")
    error = response.get_json()
    assert (response.status_code, error["code"]) == (500, "SWAP_FAILED")
    assert error["details"]["service"] == "jupiter"
    assert response.headers["Retry-After"] == str(error["details"]["retry_after_seconds"])
    # It was asked again before the refusal, and nothing was sent to anyone else.
    assert stage.jupiter.requests == 3


def test_a_price_that_moves_after_signing_costs_only_the_fee_and_releases_the_hold(stage: Stage) -> None:
    stage.chain.fail("broadcast", "before", stage.move_price)
    sol, dollars = stage.held()
    details = stage.refused("SOL", "USDC", "0.5")
    assert (details["reason"], bool(details["tx_hash"])) == ("reverted", True)
    assert stage.held()[1] == dollars
    assert 0 < sol - stage.held()[0] < 100_000
    assert stage.agent.spent_this_month() == 0
    # The market price is now above the pool's offer.
    assert stage.refused("SOL", "USDC", "0.5", slippage_bps=500)["reason"] == "price_deviation"


def test_insufficient_funds_are_refused_before_signing(stage: Stage) -> None:
    stage.agent.unlimited()
    assert stage.refused("USDC", "SOL", "100.5")["missing"] == "0.5"
    assert stage.refused("SOL", "USDC", "2")["reason"] == "insufficient_funds"
    assert stage.refused("SOL", "USDC", "9" * 30)["reason"] == "insufficient_funds"
    assert stage.refused("USDC", "SOL", "9" * 12)["reason"] in ("price_deviation", "quote_unavailable")


def test_a_lost_response_of_the_node_leads_to_one_swap(stage: Stage) -> None:
    stage.chain.raising("broadcast", "after", OutcomeUnknown("answer_lost"))
    dollars = stage.held()[1]
    assert stage.swap("USDC", "SOL", "10").get_json()["status"] == "confirmed"
    assert stage.held()[1] == dollars - 10_000_000


def test_the_output_of_a_swap_fulfils_no_funding_request(stage: Stage) -> None:
    for currency in ("USDC", "SOL"):
        path = f"{stage.agent.wallet_url}/fund"
        stage.agent.post(path, {"chain": "solana", "currency": currency, "amount": "0.000001"})
    assert stage.swap("USDC", "SOL", "10").get_json()["status"] == "confirmed"
    assert stage.swap("SOL", "USDC", "0.1").get_json()["status"] == "confirmed"
    stage.node.advance(FINALIZED)
    confirmation.confirm(ChainName.SOLANA)
    assert scanner.scan(ChainName.SOLANA) == len(stage.held()), "outputs of swaps are no deposits"
    assert {row["status"] for row in stage.agent.history(type="funding") if row["kind"] is None} == {"pending"}


def test_a_swap_on_a_chain_without_an_exchange_is_a_bad_request(
    build_app: Callable[..., Flask], sqlite_url: str, node: SolanaNode
) -> None:
    app = build_app(sqlite_url, chains={ChainName.SOLANA: solana_chain(node)}, swap_exchanges={})
    with app.app_context():
        answer = swap(register(app.test_client()), "SOL", "USDC", "1", chain="solana")
    assert (answer.status_code, list(answer.get_json()["details"]["fields"])) == (400, ["chain"])
