"""Bridges on real nodes: what is answered, recorded and counted, and that it arrives to the last unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.adapters.solana.chain import SolanaChain
from app.core.chains import USDC, ChainName
from app.core.money import parse_amount
from sandbox.bridges import BridgeServer
from sandbox.evm import EvmNode
from sandbox.solana import SolanaNode
from tests.support.agents import Agent, register
from tests.support.bridges import Workers, bridge, legs_of, running_bridges
from tests.support.chains import fund, usdc
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
    settings = {"cctp_attestation_url": services.url}
    return build_app(sqlite_url, chains=all_chains, settings=settings)


@pytest.fixture
def agent(
    app: Flask, ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode
) -> Iterator[Agent]:
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
    print(row)
