"""Swaps on real exchanges on real nodes: what is answered, recorded, counted, and moved to the last unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from app.core.money import TokenAmount, parse_amount
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import ether, fund, usdc

pytestmark = pytest.mark.chain


@pytest.fixture
def chain_client(chain_app: Flask) -> Iterator[FlaskClient]:
    with chain_app.app_context():
        yield chain_app.test_client()


@pytest.fixture
def agent(chain_client: FlaskClient, base_node: EvmNode, ethereum_node: EvmNode) -> Agent:
    """An agent with 1 ETH and 100 USDC on both EVM chains."""
    made = register(chain_client)
    for node in (base_node, ethereum_node):
        fund(node, made.address, eth=1, dollars=100)
    return made


def swap(agent: Agent, given: str, wanted: str, amount: object, *, chain: str = "base", **more: Any) -> Any:
    headers = more.pop("headers", {})
    body = {"chain": chain, "input_token": given, "output_token": wanted, "amount": amount, **more}
    return agent.post(f"{agent.wallet_url}/swap", body, **headers)


@pytest.mark.parametrize("chain", ["base", "ethereum"])
def test_ether_becomes_usdc_to_the_unit_that_the_chain_tells(
    chain: str, agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    answer = swap(agent, "ETH", "USDC", "0.01", chain=chain)
    body = answer.get_json()
    assert answer.status_code == 200, body
    assert (body["status"], body["type"], body["chain"]) == ("confirmed", "swap", chain)
    assert (body["input_token"], body["output_token"], body["input_amount"]) == ("ETH", "USDC", "0.01")
    held = chains[ChainName(chain)].balances(agent.address)
    brought = parse_amount(body["output_amount"], USDC).units
    assert held.of(USDC).units == usdc(100) + brought
    assert usdc(29.5) < brought < usdc(30)
    assert held.of(ETH).units < ether(0.99)


@pytest.mark.parametrize("chain", ["base", "ethereum"])
def test_usdc_becomes_ether_by_one_permit_and_nothing_is_left_to_anybody(
    chain: str, agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    adapter = chains[ChainName(chain)]
    before = adapter.balances(agent.address).of(ETH).units
    body = swap(agent, "usdc", "eth", "30", chain=chain).get_json()
    assert body.get("status") == "confirmed", body
    held = adapter.balances(agent.address)
    brought = parse_amount(body["output_amount"], ETH).units
    assert held.of(USDC).units == usdc(70)
    row = agent.transaction(body["transaction_id"])
    fee = before + brought - held.of(ETH).units
    assert 0 < fee < ether(0.01)
    assert (row["amount"], row["currency"], row["output_amount"], row["output_currency"]) == (
        "30", "USDC", str(TokenAmount(brought, ETH)), "ETH",
    )  # fmt: skip
