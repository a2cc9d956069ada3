"""`/mcp` on real chains: each amount moves once, whatever is retried, and refusals have the numbers of the API."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import jsonschema
import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from tests.support.agents import Agent
from tests.support.chains import RECIPIENT, usdc
from tests.support.mcp import call

pytestmark = pytest.mark.chain


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    return funded_agent


def transfer(agent: Agent, amount: str, client: FlaskClient | None = None, **more: object) -> dict[str, Any]:
    order = {"chain": "base", "currency": "USDC", "to": RECIPIENT, "wallet_id": agent.wallet_id}
    return call(client or agent.client, "transfer", agent.key, amount=amount, **order, **more)


def ids(agent: Agent) -> list[str]:
    """Return the ids of the transfers that were made."""
    return [
        each["id"] for each in agent.get(f"{agent.wallet_url}/transactions", type="transfer").get_json()["transactions"]
    ]


def test_a_transfer_that_is_retried_with_its_request_id_moves_the_amount_once(
    agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    first = transfer(agent, "12.5", request_id="invoice-1")
    assert first["isError"] is False, first
    again = transfer(agent, "12.5", request_id="invoice-1")
    assert again["structuredContent"] == first["structuredContent"]
    assert again["_meta"]["purser/replayed"] is True
    conflict = transfer(agent, "13", request_id="invoice-1")
    assert (conflict["isError"], conflict["structuredContent"]["code"]) == (True, "IDEMPOTENCY_CONFLICT")
    assert chains[ChainName.BASE].balances(agent.address).of(USDC).units == usdc(87.5)


def test_equal_arguments_without_a_request_id_are_a_retry_for_ten_minutes(agent: Agent) -> None:
    first = transfer(agent, "1")["structuredContent"]
    assert transfer(agent, "1")["structuredContent"] == first
    assert transfer(agent, "1", request_id="another")["structuredContent"] != first
    with time_machine.travel(clock.now() + timedelta(minutes=11), tick=True):
        later = transfer(agent, "1")["structuredContent"]
    assert later["transaction_id"] != first["transaction_id"]


def test_the_api_derives_no_key(agent: Agent) -> None:
    first, second = (agent.move("1", "USDC").get_json()["transaction_id"] for _ in range(2))
    assert first != second


def test_concurrent_retries_move_the_amount_once(agent: Agent, chain_app: Flask) -> None:
    def attempt(_: int) -> dict[str, Any]:
        return transfer(agent, "2", chain_app.test_client(), request_id="once")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(attempt, range(4)))
    assert {each["structuredContent"].get("code", "made") for each in results} <= {"made", "IDEMPOTENCY_CONFLICT"}
    assert len(ids(agent)) == 1


def test_a_dry_run_moves_nothing_and_claims_no_key(agent: Agent) -> None:
    quote = transfer(agent, "1", request_id="k", dry_run=True)["structuredContent"]
    assert quote["dry_run"] is True
    assert ids(agent) == []
    assert transfer(agent, "1", request_id="k")["structuredContent"]["transaction_id"]


def test_a_refusal_has_the_numbers_of_the_api_and_may_be_repeated(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=5)
    api = agent.move("6", "USDC").get_json()
    refused = transfer(agent, "6", request_id="big")
    assert refused["isError"] is True
    assert {**refused["structuredContent"], "request_id": ""} == {**api, "request_id": ""}
    agent.controls(per_tx_limit_usd=10)
    assert transfer(agent, "6", request_id="big")["isError"] is False


def test_a_payment_that_waits_for_the_owner_is_a_result_and_is_asked_for_once(
    agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    agent.controls(approval_threshold_usd=5)
    waiting = [transfer(agent, "6", request_id="large") for _ in range(2)]
    assert [each["isError"] for each in waiting] == [False, False]
    asked = waiting[0]["structuredContent"]
    assert asked["status"] == "awaiting_approval"
    assert asked == waiting[1]["structuredContent"]
    listed = call(agent.client, "get_approvals", agent.key)["structuredContent"]["approvals"]
    assert len(listed) == 1
    one = call(agent.client, "get_approvals", agent.key, approval_id=listed[0]["id"])["structuredContent"]
    assert one == listed[0]
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    tools = agent.client.post("/mcp?output_schemas=true", json=message).get_json()["result"]["tools"]
    for name, found in (("transfer", asked), ("get_approvals", one)):
        [described] = [tool for tool in tools if tool["name"] == name]
        jsonschema.validate(found, described["outputSchema"])
    assert chains[ChainName.BASE].balances(agent.address).of(USDC).units == usdc(100)


def test_one_transaction_is_read_by_the_tool_that_lists_them(agent: Agent) -> None:
    made = transfer(agent, "1")["structuredContent"]
    arguments = {"wallet_id": agent.wallet_id, "transaction_id": made["transaction_id"]}
    one = call(agent.client, "get_transactions", agent.key, **arguments)["structuredContent"]
    assert (one["id"], bool(one["events"])) == (made["transaction_id"], True)
    missing = call(agent.client, "get_transactions", agent.key, transaction_id=made["transaction_id"])
    assert missing["structuredContent"]["code"] == "INVALID_INPUT"


def test_a_model_that_retries_at_random_moves_each_amount_once(agent: Agent, chains: dict[ChainName, EvmChain]) -> None:
    choices = random.Random(27)
    amounts = ["0.5", "1.25", "3"]
    for number, amount in enumerate(amounts):
        for _ in range(choices.randint(1, 4)):
            assert transfer(agent, amount, request_id=f"payment-{number}")["isError"] is False
    assert len(ids(agent)) == len(amounts)
    assert chains[ChainName.BASE].balances(agent.address).of(USDC).units == usdc(95.25)
