"""Live balances: always the same rows, exact, with a value if a price is known, and never guessed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Barrier
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.adapters.prices import MarketPriceFeed
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS
from app.core.chains import ETH, ChainName
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.faults import FaultyChain
from tests.support.loopback_http import unused_url
from tests.support.waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.chain

ROWS = [
    ("ethereum", "ETH"), ("ethereum", "USDC"), ("base", "ETH"), ("base", "USDC"), ("solana", "SOL"), ("solana", "USDC"),
]  # fmt: skip


@pytest.fixture(scope="module")
def solana_node() -> Iterator[SolanaNode]:
    with SolanaNode(slot_ms=0) as node:
        yield node


@dataclass(frozen=True, slots=True)
class Stage:
    """An agent on three real chains, two of which can fail."""

    agent: Agent
    ethereum: FaultyChain
    base: FaultyChain

    def read(self) -> Any:
        return self.agent.get(f"{self.agent.wallet_url}/balances")

    def rows(self) -> dict[tuple[str, str], tuple[str, str | None]]:
        body = self.read().get_json()
        assert set(body) == {"wallet_id", "balances"}
        assert body["wallet_id"] == self.agent.wallet_id
        return {(r["chain"], r["token"]): (r["balance"], r.get("usd_value")) for r in body["balances"]}


Build = Callable[..., Stage]


@pytest.fixture
def build(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], solana_node: SolanaNode
) -> Iterator[Build]:
    contexts = []

    def make(*, solana_url: str | None = None, **parts: Any) -> Stage:
        faulty = {name: FaultyChain(chain) for name, chain in chains.items()}
        solana = SolanaChain(DEPLOYMENTS["sandbox"], rpc_urls=[solana_url or solana_node.url])
        app = build_app(sqlite_url, chains={**faulty, ChainName.SOLANA: solana}, **parts)
        contexts.append(app.app_context())
        contexts[-1].push()
        agent = register(app.test_client())
        return Stage(agent, faulty[ChainName.ETHEREUM], faulty[ChainName.BASE])

    yield make
    for context in reversed(contexts):
        context.pop()


def test_an_empty_wallet_has_six_rows_of_zero(build: Build) -> None:
    rows = build().rows()
    assert list(rows) == ROWS
    assert set(rows.values()) == {("0", "0")}


def test_every_coin_is_shown_to_its_last_unit_with_its_value(
    build: Build, ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode
) -> None:
    stage = build()
    address = stage.agent.address
    ethereum_node.fund_eth(address, 10**18 + 1)
    ethereum_node.fund_usdc(address, 1)
    base_node.fund_eth(address, 5 * 10**17)
    base_node.fund_usdc(address, 12_345_678)
    solana_node.airdrop(stage.agent.solana_address, 2_000_000_001)
    solana_node.mint_usdc(stage.agent.solana_address, 7_000_000)
    solana_node.advance(2)
    assert stage.rows() == {
        ("ethereum", "ETH"): ("1.000000000000000001", "3000.000000001"),
        ("ethereum", "USDC"): ("0.000001", "0.000001"),
        ("base", "ETH"): ("0.5", "1500"),
        ("base", "USDC"): ("12.345678", "12.345678"),
        ("solana", "SOL"): ("2.000000001", "300.00000015"),
        ("solana", "USDC"): ("7", "7"),
    }


def test_a_token_without_a_price_is_shown_without_a_value(build: Build, base_node: EvmNode) -> None:
    stage = build(prices=MarketPriceFeed([], [], overrides={}))
    fund(base_node, stage.agent.address, eth=0.25, dollars=3)
    rows = stage.read().get_json()["balances"]
    assert [(row["chain"], row["token"]) for row in rows] == ROWS
    valued = {(row["chain"], row["token"]): row["usd_value"] for row in rows if "usd_value" in row}
    assert valued == {("ethereum", "USDC"): "0", ("base", "USDC"): "3", ("solana", "USDC"): "0"}
    assert {row["balance"] for row in rows if row["token"] == "ETH"} == {"0", "0.25"}


def test_a_price_of_one_token_values_it_on_every_chain(build: Build, base_node: EvmNode) -> None:
    stage = build(prices=MarketPriceFeed([], [], overrides={ETH: 1_234_567_890_123}))
    fund(base_node, stage.agent.address, eth=2)
    assert stage.rows()["base", "ETH"] == ("2", "2469.135780246")


def test_an_unreachable_chain_is_reported_and_no_balance_is_guessed(build: Build) -> None:
    stage = build()
    stage.base.raising("balances", "before", Unreachable("chain_unreachable"))
    answer = stage.read()
    body = answer.get_json()
    assert (answer.status_code, body["code"], body["details"]) == (502, "BALANCE_FETCH_ERROR", {"chains": ["base"]})
    assert "base" in body["error"]
    assert "balances" not in body
    assert stage.read().status_code == 200


def test_all_unreachable_chains_are_reported(build: Build) -> None:
    stage = build(solana_url=f"{unused_url()}/canary-key")
    stage.ethereum.raising("balances", "after", Unreachable("chain_unreachable"))
    answer = stage.read()
    assert answer.get_json()["details"] == {"chains": ["ethereum", "solana"]}
    assert "canary" not in answer.get_data(as_text=True)


def test_an_unexpected_error_of_one_chain_fails_the_whole_response(build: Build) -> None:
    stage = build()
    stage.ethereum.raising("balances", "before", RuntimeError("boom"))
    answer = stage.read()
    assert (answer.status_code, answer.get_json()["code"]) == (500, "INTERNAL_ERROR")
    assert "boom" not in answer.get_data(as_text=True)


def test_chains_are_read_concurrently(build: Build) -> None:
    stage = build()
    # Each waits for the other, so sequential reads would never return.
    together = Barrier(2)
    for chain in (stage.ethereum, stage.base):
        chain.fail("balances", "before", lambda: together.wait(PATIENCE_SECONDS))
    assert stage.read().status_code == 200


def test_balances_are_live(build: Build, base_node: EvmNode) -> None:
    stage = build()
    for dollars in ("1", "2"):
        base_node.fund_usdc(stage.agent.address, 1_000_000)
        assert stage.rows()["base", "USDC"] == (dollars, dollars)
