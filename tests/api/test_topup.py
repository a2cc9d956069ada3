"""Top-ups: USDC transferred under the wallet's limits, credits granted once it is confirmed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import time_machine
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import jobs, topups
from app.payments.models import TopUp
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.payments import Shop, by_hash, shop
from workers import confirmations

pytestmark = pytest.mark.chain
BASE = ChainName.BASE


@pytest.fixture
def open_shop(build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains, initial_credits_usd="0") as made:
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


def funded_agent(open_shop: Shop, node: EvmNode) -> Agent:
    agent = register(open_shop.app.test_client())
    fund(node, agent.address, eth=1, dollars=100)
    return agent


def top_up(agent: Agent, amount: str, **headers: str) -> tuple[int, dict[str, object]]:
    body = {"wallet_id": agent.wallet_url.rsplit("/", 1)[1], "chain": "base", "amount": amount}
    answer = agent.client.post("/v1/credits/topup", json=body, headers=agent.headers(**headers))
    return answer.status_code, answer.get_json()


def run_workers(node: EvmNode, *, after_minutes: int = 0) -> None:
    node.mine(80)
    for minutes in (1, 2, 3):
        look(after_minutes + minutes)


def look(minutes: int) -> None:
    """Run the worker some minutes from now, when everything is due again."""
    with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
        confirmations.confirm("base")


def credits_of(agent: Agent) -> float:
    found: float = agent.get("/v1/balance").get_json()["credits_usd"]
    return found


def test_a_top_up_is_granted_once_and_pays_for_no_call(open_shop: Shop, base_node: EvmNode) -> None:
    agent = funded_agent(open_shop, base_node)
    status, moved = top_up(agent, "12.5", Idempotency_Key="once")
    assert (status, moved["kind"], moved["type"], moved["status"]) == (200, "topup", "transfer", "confirmed")
    assert moved["to"] == open_shop.recipient(BASE)
    assert top_up(agent, "12.5", Idempotency_Key="once")[1]["transaction_id"] == moved["transaction_id"]
    assert credits_of(agent) == 0
    run_workers(base_node)
    assert credits_of(agent) == 12.5
    run_workers(base_node)
    assert (topups.grant_due(BASE), credits_of(agent)) == (0, 12.5)
    refused = open_shop.ask(by_hash(str(moved["tx_hash"]), BASE))
    assert refused.get_json()["code"] == "PAYMENT_ALREADY_USED"
    assert agent.get(f"{agent.wallet_url}/controls").get_json()["usage_month"]["spent_usd"] == 12.5


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_a_reorg_of_any_depth_after_the_grant_neither_doubles_nor_loses_it(
    open_shop: Shop, base_node: EvmNode, depth: int
) -> None:
    agent = funded_agent(open_shop, base_node)
    moved = top_up(agent, "12.5")[1]
    look(1)
    assert credits_of(agent) == 12.5
    base_node.mine(depth - 1)
    base_node.reorg(depth)
    for minutes in (2, 3, 4):
        look(minutes)
        assert credits_of(agent) == 12.5
    assert agent.transaction(str(moved["transaction_id"]))["status"] == "confirmed"
    run_workers(base_node, after_minutes=4)
    with read_only_unit() as session:
        assert session.get_one(TopUp, moved["transaction_id"]).closed_at is not None
        assert jobs.check(session) == []
    assert credits_of(agent) == 12.5


def test_credits_for_a_transfer_that_a_reorg_made_impossible_are_taken_back(
    open_shop: Shop, base_node: EvmNode
) -> None:
    agent = register(open_shop.app.test_client())
    fund(base_node, agent.address, eth=1)
    base_node.fund_usdc(agent.address, 12_500_000)
    moved = top_up(agent, "12.5")[1]
    look(1)
    assert credits_of(agent) == 12.5
    # The deposit that paid for it vanishes with it.
    base_node.reorg(2)
    for minutes in (2, 3, 4):
        look(minutes)
    run_workers(base_node, after_minutes=4)
    run_workers(base_node, after_minutes=10)
    assert agent.transaction(str(moved["transaction_id"]))["status"] == "failed"
    assert credits_of(agent) == 0
    with read_only_unit() as session:
        assert jobs.check(session) == []


def test_a_wallet_cannot_be_deleted_before_its_top_up_is_granted_and_audits_detect_wrong_grants(
    open_shop: Shop, base_node: EvmNode
) -> None:
    agent = funded_agent(open_shop, base_node)
    moved = top_up(agent, "2")[1]
    kept = agent.client.delete(agent.wallet_url, headers=agent.headers())
    assert (kept.status_code, kept.get_json()["code"]) == (409, "TRANSACTION_IN_PROGRESS")
    run_workers(base_node)

    def record_grant(nanos: int) -> None:
        with unit_of_work() as session:
            session.get_one(TopUp, moved["transaction_id"]).granted_nanos = nanos

    record_grant(0)
    with read_only_unit() as session:
        problems = jobs.check(session)
    assert any("is final and confirmed, and granted nothing" in problem for problem in problems), problems
    record_grant(2 * 10**9)
    assert agent.client.delete(f"{agent.wallet_url}?force=true", headers=agent.headers()).status_code == 200
    assert credits_of(agent) == 2
    record_grant(3 * 10**9)
    with read_only_unit() as session:
        assert len(jobs.check(session)) == 2
    record_grant(2 * 10**9)


def test_a_top_up_is_subject_to_limits_but_needs_no_allowlist_entry(open_shop: Shop, base_node: EvmNode) -> None:
    agent = funded_agent(open_shop, base_node)
    agent.client.put(
        f"{agent.wallet_url}/controls",
        json={"allowed_addresses": ["0x00000000000000000000000000000000C0FFEE00"]},
        headers=agent.headers(),
    )
    assert top_up(agent, "60")[1]["code"] == "PER_TX_LIMIT_EXCEEDED"
    assert top_up(agent, "1")[0] == 200
    status, body = top_up(agent, "0")
    assert (status, body["code"]) == (400, "INVALID_INPUT")


def test_without_credits_the_terms_are_returned_and_a_payment_sent_with_the_key_is_accepted(
    open_shop: Shop, base_node: EvmNode
) -> None:
    agent = funded_agent(open_shop, base_node)
    key = {"X-API-Key": agent.key}
    unpaid = open_shop.ask(key)
    body = unpaid.get_json()
    assert (unpaid.status_code, body["code"]) == (402, "INSUFFICIENT_CREDITS")
    assert body["payment"]["amount"] == "0.01"
    assert "PAYMENT-REQUIRED" in unpaid.headers
    moved = agent.client.post(
        f"{agent.wallet_url}/transfer",
        json={"chain": "base", "to": open_shop.recipient(BASE), "amount": "0.01", "currency": "USDC"},
        headers=agent.headers(),
    ).get_json()
    base_node.mine(6)
    # The agent's own payment, which cannot be used without its key.
    assert open_shop.ask(by_hash(moved["tx_hash"], BASE)).status_code == 402
    assert open_shop.ask({**key, **by_hash(moved["tx_hash"], BASE)}).status_code == 200
