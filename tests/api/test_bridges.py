"""Bridges on real nodes: what is answered, recorded and counted, and that it arrives to the last unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.adapters.solana.chain import SolanaChain
from app.core.chains import ETH, USDC, ChainName
from app.core.money import parse_amount
from sandbox.bridges import BridgeServer, Derivation
from sandbox.bridges.attester import AttesterFaults
from sandbox.bridges.server import Faults
from sandbox.evm import EvmNode
from sandbox.solana import SolanaNode
from tests.support.agents import Agent, register
from tests.support.bridges import Workers, bridge, legs_of, running_bridges
from tests.support.chains import ether, fund, usdc
from tests.support.solana import fund_solana, running_solana, solana_chain

pytestmark = pytest.mark.chain
EVM = (ChainName.ETHEREUM, ChainName.BASE)


@pytest.fixture(scope="session")
def solana_node() -> Iterator[SolanaNode]:
    with running_solana(slot_ms=20) as node:
        yield node


@pytest.fixture(scope="session")
def services(ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode) -> Iterator[BridgeServer]:
    urls = {"ethereum": ethereum_node.url, "base": base_node.url, "solana": solana_node.url}
    with running_bridges(**urls) as server:
        yield server


@pytest.fixture(autouse=True)
def _well_again(services: BridgeServer) -> Iterator[None]:
    yield
    services.faults = Faults()
    services.attester.faults = AttesterFaults()
    services.relay.refunds = services.relay.sleeps = False


@pytest.fixture
def all_chains(
    chains: dict[ChainName, EvmChain], solana_node: SolanaNode
) -> dict[ChainName, EvmChain | SolanaChain]:
    return {**chains, ChainName.SOLANA: solana_chain(solana_node)}


@pytest.fixture
def app(
    build_app: Callable[..., Flask],
    sqlite_url: str,
    all_chains: dict[ChainName, Any],
    services: BridgeServer,
) -> Flask:
    settings = {
        "cctp_attestation_url": services.url, "relay_base_url": services.url,
        "lifi_base_url": services.url + "/v1",
    }  # fmt: skip
    return build_app(sqlite_url, chains=all_chains, settings=settings)


@pytest.fixture
def agent(app: Flask, ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode) -> Iterator[Agent]:
    """An agent with 1 of the chain's own coin and 100 USDC on each chain."""
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=100)
        fund(ethereum_node, made.address, eth=1, dollars=100)
        fund_solana(solana_node, made.solana_address, sol=1, dollars=100)
        yield made


@pytest.fixture
def workers(agent: Agent) -> Workers:
    return Workers(agent, *ChainName)


def held(chains: dict[ChainName, Any], agent: Agent, chain: str) -> int:
    """Return micro-USDC."""
    name = ChainName(chain)
    address = agent.solana_address if name is ChainName.SOLANA else agent.address
    units: int = chains[name].balances(address).of(USDC).units
    return units


@pytest.mark.parametrize(
    ("source", "destination"), [(a.value, b.value) for a in ChainName for b in ChainName if a is not b]
)
def test_usdc_arrives_on_the_other_chain_to_the_last_unit(
    source: str, destination: str, agent: Agent, all_chains: dict[ChainName, Any], workers: Workers
) -> None:
    answer = bridge(agent, source, destination, "50")
    body = answer.get_json()
    assert answer.status_code == 200, body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    assert held(all_chains, agent, source) == usdc(50)
    received = parse_amount(row["received_amount"], USDC).units
    assert held(all_chains, agent, destination) == usdc(100) + received
    assert usdc(49.5) < received < usdc(50)


def ether_held(chains: dict[ChainName, Any], agent: Agent, chain: str) -> int:
    units: int = chains[ChainName(chain)].balances(agent.address).of(ETH).units
    return units


def test_ether_goes_through_the_portal_and_all_of_it_arrives_on_base(
    agent: Agent,
    all_chains: dict[ChainName, Any],
    workers: Workers,
    ethereum_node: EvmNode,
    base_node: EvmNode,
) -> None:
    body = bridge(agent, "ethereum", "base", "0.25", "ETH").get_json()
    assert body["status"] == "pending", body
    assert (body["fee"], body["received_amount"]) == ("0", None)
    workers.look()
    assert agent.transaction(body["transaction_id"])["status"] == "pending"
    (tx_hash,) = Derivation(ethereum_node.url, base_node.url).derive()
    row = workers.finish(body["transaction_id"])
    assert (row["status"], row["received_amount"], row["cost_usd"]) == ("confirmed", "0.25", 0)
    assert row["legs"][-1]["tx_hash"] == tx_hash
    assert legs_of(row) == {"source": "confirmed", "destination": "confirmed"}
    assert ether_held(all_chains, agent, "base") == ether(1.25)
    assert ether(0.74) < ether_held(all_chains, agent, "ethereum") < ether(0.75)


def test_ether_leaves_base_by_relay_and_arrives_less_the_fee(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers
) -> None:
    body = bridge(agent, "base", "ethereum", "0.25", "ETH").get_json()
    assert (body["status"], body["route"]) == ("pending", "Relay"), body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    received = parse_amount(row["received_amount"], ETH).units
    assert ether(0.249) < received < ether(0.25)
    assert ether_held(all_chains, agent, "ethereum") == ether(1) + received
    assert ether(0.74) < ether_held(all_chains, agent, "base") < ether(0.75)
    assert agent.spent_today() == row["cost_usd"] > 0


def test_where_relay_gives_no_quote_li_fi_is_asked(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers, services: BridgeServer
) -> None:
    services.faults.status, services.faults.paths = 503, ("/quote/v2",)
    body = bridge(agent, "base", "ethereum", "0.25", "ETH").get_json()
    assert (body["status"], body["route"]) == ("pending", "LI.FI, Relay"), body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    received = parse_amount(row["received_amount"], ETH).units
    assert ether_held(all_chains, agent, "ethereum") == ether(1) + received
