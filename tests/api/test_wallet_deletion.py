"""Deletion of wallets that hold tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core.chains import ChainName
from app.ports.errors import Unreachable
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.faults import FaultyChain

pytestmark = pytest.mark.chain


@pytest.fixture
def agent(chain_app: Flask) -> Iterator[Agent]:
    with chain_app.app_context():
        yield register(chain_app.test_client())


def test_a_wallet_that_holds_tokens_is_deleted_with_force_only_and_its_contents_are_listed(
    agent: Agent, base_node: EvmNode, ethereum_node: EvmNode
) -> None:
    fund(base_node, agent.address, eth=0.5, dollars=3)
    fund(ethereum_node, agent.address, eth=0.25)
    answer = agent.delete(agent.wallet_url)
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (409, "WALLET_NOT_EMPTY")
    listed = {(each["chain"], each["token"], each["balance"]) for each in body["details"]["balances"]}
    assert listed == {("base", "ETH", "0.5"), ("base", "USDC", "3"), ("ethereum", "ETH", "0.25")}
    assert agent.get(agent.wallet_url).status_code == 200
    for wrong in ({"force": "yes"}, {"force": 1}):
        refused = agent.client.delete(agent.wallet_url, json=wrong, headers=agent.headers())
        assert (refused.status_code, refused.get_json()["code"]) == (400, "INVALID_INPUT")
    for refused in (
        agent.client.delete(agent.wallet_url, json={"force": False}, headers=agent.headers()),
        agent.delete(f"{agent.wallet_url}?force=false"),
    ):
        assert refused.get_json()["code"] == "WALLET_NOT_EMPTY"
    deleted = agent.client.delete(agent.wallet_url, json={"force": True}, headers=agent.headers())
    assert (deleted.status_code, deleted.get_json()["deleted"]) == (200, True)


def test_force_may_be_in_the_query(agent: Agent, base_node: EvmNode) -> None:
    fund(base_node, agent.address, eth=0, dollars=0.000001)
    assert agent.delete(agent.wallet_url).get_json()["code"] == "WALLET_NOT_EMPTY"
    assert agent.delete(f"{agent.wallet_url}?force=true").status_code == 200


@pytest.mark.parametrize("method", ["balances", "foreign_tokens"])
def test_a_wallet_whose_balances_cannot_be_read_is_deleted_with_force_only(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], method: str
) -> None:
    chain = FaultyChain(chains[ChainName.BASE])
    app = build_app(sqlite_url, chains={ChainName.BASE: chain})
    with app.app_context():
        unused, agent = register(app.test_client()), register(app.test_client())
        wanted = {"amount": "1", "currency": "USDC", "chain": "base"}
        assert agent.post(f"{agent.wallet_url}/fund", wanted).status_code == 200
        chain.raising(method, "before", Unreachable("chain_unreachable"), times=9)
        assert unused.delete(unused.wallet_url).status_code == 200
        answer = agent.delete(agent.wallet_url)
        assert (answer.status_code, answer.get_json()["code"]) == (502, "BALANCE_FETCH_ERROR")
        assert agent.delete(f"{agent.wallet_url}?force=true").status_code == 200
