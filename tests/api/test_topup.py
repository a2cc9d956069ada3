"""Credits for USDC: moved under the wallet's limits, granted once and when final."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import time_machine
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ChainName
from app.core.unit_of_work import reading, unit_of_work
from app.payments import audit, topups
from app.payments.models import TopUp
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.payments import Shop, by_hash, shop
from workers import confirmations

pytestmark = pytest.mark.chain
BASE = ChainName.BASE


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains, initial_credits_usd="0") as made:
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


def rich(open_shop: Shop, node: EvmNode) -> Agent:
    agent = register(open_shop.app.test_client())
    fund(node, agent.address, eth=1, dollars=100)
    return agent


def top_up(agent: Agent, amount: str, **headers: str) -> tuple[int, dict[str, object]]:
    body = {"wallet_id": agent.wallet_url.rsplit("/", 1)[1], "chain": "base", "amount": amount}
    answer = agent.client.post("/v1/credits/topup", json=body, headers=agent.headers(**headers))
    return answer.status_code, answer.get_json()


def work(node: EvmNode) -> None:
    node.mine(80)
    for minutes in (1, 2, 3):
        with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
            confirmations.confirm("base")


def credits_of(agent: Agent) -> float:
    found: float = agent.get("/v1/balance").get_json()["credits_usd"]
    return found


def test_what_arrived_is_granted_once_and_pays_for_nothing_else(open_shop: Shop, base_node: EvmNode) -> None:
    agent = rich(open_shop, base_node)
    status, moved = top_up(agent, "12.5", Idempotency_Key="once")
    assert (status, moved["kind"], moved["type"], moved["status"]) == (200, "topup", "transfer", "confirmed")
    assert moved["to"] == open_shop.recipient(BASE)
    assert top_up(agent, "12.5", Idempotency_Key="once")[1]["transaction_id"] == moved["transaction_id"]
    assert credits_of(agent) == 0
    work(base_node)
    assert credits_of(agent) == 12.5
    work(base_node)
    assert (topups.grant_due(BASE), credits_of(agent)) == (0, 12.5)
    refused = open_shop.ask(by_hash(str(moved["tx_hash"]), BASE))
    assert refused.get_json()["code"] == "PAYMENT_ALREADY_USED"
    assert agent.get(f"{agent.wallet_url}/controls").get_json()["usage_today"]["spent_usd"] == 12.5


def test_a_wallet_stays_until_its_top_up_is_granted_and_audits_see_what_was_not_moved(
    open_shop: Shop, base_node: EvmNode
) -> None:
    agent = rich(open_shop, base_node)
    moved = top_up(agent, "2")[1]
    kept = agent.client.delete(agent.wallet_url, headers=agent.headers())
    assert (kept.status_code, kept.get_json()["code"]) == (409, "TRANSACTION_IN_PROGRESS")
    work(base_node)

    def note(nanos: int) -> None:
        with unit_of_work() as session:
            session.get_one(TopUp, moved["transaction_id"]).granted_nanos = nanos

    note(0)
    with reading():
        said = audit.check()
    assert any("has arrived for good and granted nothing" in sentence for sentence in said), said
    note(2 * 10**9)
    assert agent.client.delete(agent.wallet_url, headers=agent.headers()).status_code == 200
    assert credits_of(agent) == 2
    note(3 * 10**9)
    with reading():
        assert len(audit.check()) == 2
    note(2 * 10**9)


def test_a_topup_is_under_the_limits_but_needs_no_allowlist_entry(
    open_shop: Shop, base_node: EvmNode
) -> None:
    agent = rich(open_shop, base_node)
    agent.client.put(
        f"{agent.wallet_url}/controls",
        json={"allowed_addresses": ["0x00000000000000000000000000000000C0FFEE00"]},
        headers=agent.headers(),
    )
    assert top_up(agent, "60")[1]["code"] == "PER_TX_LIMIT_EXCEEDED"
    assert top_up(agent, "1")[0] == 200
    status, body = top_up(agent, "0")
    assert (status, body["code"]) == (400, "INVALID_INPUT")


def test_without_credits_the_terms_are_told_and_a_payment_beside_the_key_is_taken(
    open_shop: Shop, base_node: EvmNode
) -> None:
    agent = rich(open_shop, base_node)
    key = {"X-API-Key": agent.key}
    told = open_shop.ask(key)
    body = told.get_json()
    assert (told.status_code, body["code"]) == (402, "INSUFFICIENT_CREDITS")
    assert body["payment"]["amount"] == "0.01"
    assert "PAYMENT-REQUIRED" in told.headers
    moved = agent.client.post(
        f"{agent.wallet_url}/transfer",
        json={"chain": "base", "to": open_shop.recipient(BASE), "amount": "0.01", "currency": "USDC"},
        headers=agent.headers(),
    ).get_json()
    base_node.mine(6)
    # The agent's own payment, which nobody without its key could use.
    assert open_shop.ask(by_hash(moved["tx_hash"], BASE)).status_code == 402
    assert open_shop.ask({**key, **by_hash(moved["tx_hash"], BASE)}).status_code == 200
