"""Bridges on real nodes: what is answered, recorded and counted, and that it arrives to the last unit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from sandbox.bridges import BridgeServer
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.bridges import Workers, bridge, legs_of, running_bridges
from tests.support.chains import fund, usdc

pytestmark = pytest.mark.chain
EVM = (ChainName.ETHEREUM, ChainName.BASE)


@pytest.fixture(scope="session")
def services(ethereum_node: EvmNode, base_node: EvmNode) -> Iterator[BridgeServer]:
    with running_bridges(ethereum=ethereum_node.url, base=base_node.url) as server:
        yield server


@pytest.fixture
def app(
    build_app: Callable[..., Flask],
    sqlite_url: str,
    chains: dict[ChainName, EvmChain],
    services: BridgeServer,
) -> Flask:
    settings = {"cctp_attestation_url": services.url}
    return build_app(sqlite_url, chains=chains, settings=settings)


@pytest.fixture
def agent(app: Flask, ethereum_node: EvmNode, base_node: EvmNode) -> Iterator[Agent]:
    """An agent with 1 ETH and 100 USDC on both chains."""
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=100)
        fund(ethereum_node, made.address, eth=1, dollars=100)
        yield made


@pytest.fixture
def workers(agent: Agent) -> Workers:
    return Workers(agent, *EVM)


@pytest.mark.parametrize(("source", "destination"), [("base", "ethereum"), ("ethereum", "base")])
def test_usdc_arrives_on_the_other_chain_to_the_last_unit(
    source: str, destination: str, agent: Agent, chains: dict[ChainName, EvmChain], workers: Workers
) -> None:
    answer = bridge(agent, source, destination, "50")
    body = answer.get_json()
    assert answer.status_code == 200, body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    print(row)
    left = chains[ChainName(source)].balances(agent.address).of(USDC).units
    held = chains[ChainName(destination)].balances(agent.address).of(USDC).units
    assert left == usdc(50)
    assert held == usdc(100) + round(float(row["received_amount"]) * 10**6)
