"""Calls that an application makes for an agent: the budget that counts them, and tokens that must not be forwarded."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from app.db import leases
from app.db.leases import ProcessKind
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT, fund
from tests.support.fake_shopper import FakeShopper
from tests.support.gateway import CHAT, KEYS, QUESTION, gateway_stage
from tests.support.market import market
from tests.support.oauth import Application
from tests.support.owners import Owner, person
from tests.support.upstreams import Asked, chat_answer

BUY = "/v1/gateway/shopping/buy"
PURCHASE: dict[str, Any] = {
    "url": "https://shop.example/p/1",
    "credentials": {"username": "ada@example.com", "password": "secret"},
    "shippingAddress": {"name": "Ada Buyer", "zip": "94107"},
    "max_total_usd": 40,
}

DEPOSIT = {"chain": "base", "amount": "5", "currency": "USDC"}


def claimed(app: Flask, agent: Agent) -> tuple[Owner, dict[str, Any]]:
    """Return the owner of an agent, and the agent as its registration is answered."""
    code = agent.post("/v1/agents/claim-code", {}).get_json()["claimCode"]
    owner = person(app)
    owner.claim({"claimCode": code})
    return owner, {"agentId": agent.id, "wallet": {"id": agent.wallet_id}}


def connected_to_second_wallet(app: Flask, agent: Agent) -> tuple[Application, str]:
    """Return an application of the agent's second wallet, and that wallet."""
    second = agent.post("/v1/wallets", {}).get_json()["id"]
    owner, made = claimed(app, agent)
    application = Application(app)
    application.connect(owner, made, account=f"{agent.id} {second}")
    return application, f"/v1/wallets/{second}"


def seen(asked: list[Asked]) -> str:
    return " ".join(f"{each.target} {each.headers} {each.body!r}" for each in asked)


def test_a_token_is_not_forwarded_to_a_provider(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(lambda exchange: exchange.json(chat_answer()))
        application = Application(stage.app)
        application.connect(*claimed(stage.app, stage.agent))
        token = application.tokens["access_token"]
        client = stage.agent.client
        for path, headers in (
            (CHAT, {"Authorization": f"Bearer {token}"}),
            (CHAT, {"X-API-Key": token, "X-Goog-Api-Key": token, "X-Anything": f"key {token}"}),
            (f"{CHAT}?key={token}", {}),
        ):
            assert client.post(path, json={**QUESTION, "user": "u1"}, headers=headers).status_code == 200
        called = application.call_tool(
            "call_service", service="openai", path="chat/completions", method="POST", body=json.dumps(QUESTION)
        )
        assert called.get_json()["result"]["structuredContent"]["status"] == 200, called.text
        assert len(stage.upstream.asked) == 4
        assert token not in seen(stage.upstream.asked)
        assert {each.header("Authorization") for each in stage.upstream.asked} == {f"Bearer {KEYS['openai']}"}
        logs = application.get("/v1/usage").get_json()["logs"]
        assert len(logs) == 4


def test_calls_of_the_catalog_count_against_the_budget_and_sellers_see_no_token(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with market(build_app, sqlite_url) as stage:
        application = Application(stage.app)
        application.connect(*claimed(stage.app, stage.buyer), budget_usd="0.60")
        token = application.tokens["access_token"]
        assert application.get(f"/v1/proxy/{stage.id}/weather/Berlin").status_code == 200
        called = application.call_tool("call_service", service=stage.id, path="weather/Berlin", method="GET")
        assert called.get_json()["result"]["structuredContent"]["status"] == 200, called.text
        refused = stage.call(headers={"X-API-Key": token, "X-Upstream-Authorization": "Bearer of the seller"})
        assert (refused.status_code, refused.get_json()["code"]) == (403, "SESSION_LIMIT_EXCEEDED")
        second = stage.buyer.post("/v1/wallets", {}).get_json()["id"]
        assert stage.call(headers={"X-API-Key": token, "X-Wallet-Id": second}).status_code == 404
        assert token not in seen(stage.upstream.asked)
        stage.assert_charged(2)
        [session] = stage.buyer.get(f"{stage.buyer.wallet_url}/sessions").get_json()["sessions"]
        assert (session["max_usd"], session["spent_usd"]) == (0.6, 0.5)


# --- One wallet


@pytest.mark.chain
def test_what_another_wallet_did_is_not_found_by_its_id(chain_app: Flask, base_node: EvmNode) -> None:
    with chain_app.app_context():
        leases.record(ProcessKind.SHOPPER)
        agent = register(chain_app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        application, own_wallet = connected_to_second_wallet(chain_app, agent)
        purchase = agent.post(BUY, PURCHASE).get_json()["id"]
        deposit = agent.post(f"{agent.wallet_url}/fund", DEPOSIT).get_json()["funding_request_id"]
        transfer = agent.move("1", "USDC").get_json()["transaction_id"]
        ends_at = clock.isoformat(clock.now() + timedelta(hours=1))
        opened = agent.post(f"{agent.wallet_url}/sessions", {"max_usd": 5, "expires_at": ends_at})
        session = opened.get_json()["id"]
        agent.controls(approval_threshold_usd=1)
        approval = agent.move("5", "USDC").get_json()["approval"]["id"]
        own_id = own_wallet.rpartition("/")[2]
        for tool, arguments in (
            ("get_purchase", {"purchase_id": purchase}),
            ("get_approvals", {"approval_id": approval}),
            ("get_transactions", {"wallet_id": own_id, "transaction_id": transfer}),
            ("get_transactions", {"wallet_id": agent.wallet_id}),
            ("get_balances", {"wallet_id": agent.wallet_id}),
        ):
            result = application.call_tool(tool, **arguments).get_json()["result"]
            assert result["structuredContent"].get("code") == "NOT_FOUND", (tool, result)
        rows = [f"transactions/{deposit}", f"transactions/{transfer}", f"sessions/{session}"]
        paths = [f"{agent.wallet_url}/{row}" for row in rows]
        paths += [agent.wallet_url, f"/v1/approvals/{approval}", f"/v1/gateway/shopping/purchases/{purchase}"]
        assert {agent.get(path).status_code for path in paths} == {200}
        rows.append(f"x402/purchases/{transfer}")
        for path in (*paths, *(f"{own_wallet}/{row}" for row in rows)):
            assert application.get(path).status_code == 404, path
        for path, name in (("/v1/approvals", "approvals"), (f"{own_wallet}/transactions", "transactions")):
            assert application.get(path).get_json()[name] == [], path


@pytest.mark.parametrize("is_named", [True, False], ids=["named key", "derived key"])
def test_a_repetition_does_not_show_what_the_agent_bought(
    build_app: Callable[..., Flask], sqlite_url: str, *, is_named: bool
) -> None:
    app = build_app(sqlite_url, shopper=FakeShopper())
    with app.app_context():
        leases.record(ProcessKind.SHOPPER)
        agent = register(app.test_client())
        application, _ = connected_to_second_wallet(app, agent)
        arguments = {**PURCHASE, **({"request_id": "order-1"} if is_named else {})}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "buy", "arguments": arguments}}
        first = agent.post("/mcp", message).get_json()["result"]["structuredContent"]
        assert agent.post("/mcp", message).get_json()["result"]["_meta"]["purser/replayed"]
        again = application.call_tool("buy", **arguments).get_json()["result"]
        assert first["id"] not in json.dumps(again)
        assert again["structuredContent"]["code"] == "NOT_FOUND"


@pytest.mark.chain
def test_an_application_has_idempotency_keys_apart_from_the_agents(chain_app: Flask, base_node: EvmNode) -> None:
    """Both may number their payments from one: the payment of one must not replace that of the other."""
    with chain_app.app_context():
        agent = register(chain_app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        application = Application(chain_app)
        application.connect(*claimed(chain_app, agent))
        url, key = f"{agent.wallet_url}/transfer", {"Idempotency-Key": "1"}
        order = {"chain": "base", "to": RECIPIENT, "amount": "5", "currency": "USDC"}
        first = agent.post(url, order, **key).get_json()["transaction_id"]
        second = application.post(url, order, **key).get_json()["transaction_id"]
        assert second != first
        # They outlive the access token.
        assert application.refresh().status_code == 200
        again = application.post(url, order, **key)
        assert (again.headers["Idempotent-Replayed"], again.get_json()["transaction_id"]) == ("true", second)


@pytest.mark.chain
def test_a_transfer_by_mcp_ends_at_the_budget(
    chain_app: Flask, base_node: EvmNode, chains: dict[ChainName, EvmChain]
) -> None:
    with chain_app.app_context():
        agent = register(chain_app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        application = Application(chain_app)
        application.connect(*claimed(chain_app, agent), budget_usd="12.50")
        order = {"wallet_id": agent.wallet_id, "chain": "base", "to": RECIPIENT, "currency": "USDC"}

        def transfer(amount: str, number: int) -> dict[str, Any]:
            called = application.call_tool("transfer", **order, amount=amount, request_id=f"r{number}")
            result: dict[str, Any] = called.get_json()["result"]
            return result

        before = chains[ChainName.BASE].balances(RECIPIENT).of(USDC).units
        within = transfer("10", 1)
        assert not within["isError"], within
        assert transfer("10", 1)["_meta"]["purser/replayed"]
        above = transfer("2.500001", 2)
        assert (above["isError"], above["structuredContent"]["code"]) == (True, "SESSION_LIMIT_EXCEEDED")
        assert above["structuredContent"]["details"]["remaining_usd"] == 2.5
        assert not transfer("2.50", 3)["isError"]
        assert chains[ChainName.BASE].balances(RECIPIENT).of(USDC).units - before == 12_500_000
        # The agent's own key is under the limits of the wallet only.
        assert agent.move("1", "USDC").status_code == 200
        assert agent.transaction(within["structuredContent"]["transaction_id"])["status"] == "confirmed"
