"""Swaps on a real exchange on real nodes: responses, records, limits and exact balances."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.chain import EvmChain
from app.adapters.prices import MarketPriceFeed
from app.adapters.swaps.uniswap import UniswapExchange
from app.core import clock
from app.core.chains import ETH, SOL, USDC, ChainName, Token
from app.core.money import TokenAmount, parse_amount
from app.db.unit_of_work import unit_of_work
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.spending import accounts as spending_accounts
from app.wallets.deposits import scanner
from app.wallets.transactions import confirmation
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import ether, evm_chain, fund, usdc
from tests.support.faults import FaultyChain, FaultyExchange
from tests.support.mcp import call
from tests.support.swaps import move_price, router_may_take, swap

pytestmark = pytest.mark.chain


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    return funded_agent


@pytest.fixture
def base(chains: dict[ChainName, EvmChain]) -> EvmChain:
    return chains[ChainName.BASE]


@pytest.mark.parametrize("chain", ["base", "ethereum"])
def test_ether_is_swapped_to_usdc_with_the_exact_output_of_the_chain(
    chain: str, agent: Agent, chains: dict[ChainName, EvmChain], ethereum_node: EvmNode
) -> None:
    fund(ethereum_node, agent.address, eth=1, dollars=100)
    answer = swap(agent, "ETH", "USDC", "0.01", chain=chain)
    body = answer.get_json()
    assert answer.status_code == 200, body
    assert (body["status"], body["type"], body["chain"]) == ("confirmed", "swap", chain)
    assert (body["input_token"], body["output_token"], body["input_amount"]) == ("ETH", "USDC", "0.01")
    held = chains[ChainName(chain)].balances(agent.address)
    brought = parse_amount(body["output_amount"], USDC).units
    assert held.of(USDC).units == usdc(100) + brought
    assert usdc(29.5) < brought < usdc(30.5)
    assert 0 < ether(0.99) - held.of(ETH).units < ether(0.01)
    assert chains[ChainName(chain)].balances(evm_chain_router(chains, chain)).of(ETH).units == 0


def evm_chain_router(chains: dict[ChainName, EvmChain], chain: str) -> str:
    return chains[ChainName(chain)].deployment.uniswap_router


@pytest.mark.parametrize("chain", ["base", "ethereum"])
def test_usdc_is_swapped_to_ether_by_one_permit_and_no_allowance_remains(
    chain: str, agent: Agent, chains: dict[ChainName, EvmChain], ethereum_node: EvmNode
) -> None:
    fund(ethereum_node, agent.address, eth=1, dollars=100)
    adapter = chains[ChainName(chain)]
    before = adapter.balances(agent.address).of(ETH).units
    body = swap(agent, "usdc", "eth", "30", chain=chain).get_json()
    assert body.get("status") == "confirmed", body
    held = adapter.balances(agent.address)
    brought = parse_amount(body["output_amount"], ETH).units
    assert held.of(USDC).units == usdc(70)
    fee = before + brought - held.of(ETH).units
    assert 0 < fee < ether(0.01)
    router = adapter.balances(adapter.deployment.uniswap_router)
    assert [amount.units for amount in router.amounts] == [0, 0]
    assert router_may_take(adapter, agent.address) == 0
    row = agent.transaction(body["transaction_id"])
    assert (row["type"], row["amount"], row["currency"]) == ("swap", "30", "USDC")
    assert (row["output_amount"], row["output_currency"]) == (str(TokenAmount(brought, ETH)), "ETH")
    assert (row["from_address"], row["to_address"]) == (agent.address, agent.address)
    assert [event["status"] for event in row["events"]] == ["pending", "confirmed"]


def test_only_the_possible_loss_of_a_swap_counts_against_the_limits(agent: Agent) -> None:
    body = swap(agent, "USDC", "ETH", "90", slippage_bps=100).get_json()
    assert body["status"] == "confirmed"
    row = agent.transaction(body["transaction_id"])
    least = parse_amount(body["minimum_output_amount"], ETH).units
    lost = 90 - least * 3000 / 10**18
    assert row["cost_usd"] == pytest.approx(lost, abs=1e-6)
    assert 0.8 < row["cost_usd"] < 1.2
    assert agent.spent_this_month() == row["cost_usd"]


class _Fixed:
    """A price source with constant prices."""

    def __init__(self, dollars: int) -> None:
        self._dollars = dollars

    def read(self) -> dict[Token, int]:
        return {ETH: self._dollars * 10**9, SOL: 150 * 10**9}


@pytest.mark.parametrize(("given", "wanted", "amount"), [("USDC", "ETH", "90"), ("ETH", "USDC", "0.03")])
def test_if_price_sources_differ_the_loss_is_computed_from_the_worse_one(
    given: str,
    wanted: str,
    amount: str,
    build_app: Callable[..., Flask],
    sqlite_url: str,
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
) -> None:
    # The pool trades at 3000; the input counts at the higher price, the output at the lower.
    prices = MarketPriceFeed([_Fixed(2985), _Fixed(3015)], [], overrides={})
    app = build_app(sqlite_url, chains=chains, prices=prices)
    with app.app_context():
        agent = register(app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        found = swap(agent, given, wanted, amount, dry_run=True).get_json()
        gives = {"USDC": 1, "ETH": 3015}[given] * float(amount)
        least = {"USDC": 1, "ETH": 2985}[wanted] * float(found["minimum_output_amount"])
        assert found["value_usd"] == pytest.approx(gives - least, abs=1e-5)
        assert found["value_usd"] > 0.8


def test_a_limit_below_the_possible_loss_refuses_a_swap_before_signing(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=0.4)
    answer = swap(agent, "USDC", "ETH", "90", slippage_bps=100)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert agent.history() == []
    assert swap(agent, "USDC", "ETH", "20", slippage_bps=50).get_json()["status"] == "confirmed"


def test_an_address_allowlist_does_not_apply_to_swaps(agent: Agent) -> None:
    agent.controls(allowed_addresses=["0x00000000000000000000000000000000C0FFEE00"])
    assert swap(agent, "ETH", "USDC", "0.001").get_json()["status"] == "confirmed"


def test_snake_case_and_camel_case_fields_are_equivalent(agent: Agent) -> None:
    snake = {
        "chain": "base", "input_token": "ETH", "output_token": "USDC", "amount": "0.001",
        "slippage_bps": 70, "dry_run": True,
    }  # fmt: skip
    camel = {
        "chain": "base", "inputToken": "ETH", "outputToken": "USDC", "amount": "0.001",
        "slippageBps": 70, "dryRun": True,
    }  # fmt: skip
    path = f"{agent.wallet_url}/swap"
    first, second = (agent.post(path, body).get_json() for body in (snake, camel))
    assert first["slippage_bps"] == second["slippage_bps"] == 70
    assert (first["input_token"], first["output_token"]) == (second["input_token"], second["output_token"])
    assert agent.history() == []
    both = agent.post(path, {**snake, "inputToken": "USDC"})
    assert (both.status_code, list(both.get_json()["details"]["fields"])) == (400, ["input_token"])
    assert agent.post(path, {**snake, **camel}).status_code == 200
    real = {name: value for name, value in camel.items() if name != "dryRun"}
    assert agent.post(path, real).get_json()["status"] == "confirmed"


def test_a_dry_run_returns_output_route_loss_and_fees_and_signs_nothing(agent: Agent, base: EvmChain) -> None:
    before = base.balances(agent.address)
    for given, wanted, amount in (("ETH", "USDC", "0.01"), ("USDC", "ETH", "30")):
        found = swap(agent, given, wanted, amount, dry_run=True, Idempotency_Key="k").get_json()
        assert (found["dry_run"], found["input_amount"], found["network_fee_currency"]) == (True, amount, "ETH")
        assert found["route"] == "Uniswap V3, 0.05 %"
        assert float(found["minimum_output_amount"]) < float(found["output_amount"])
        assert 0 < found["value_usd"] < 1
        assert 0 < found["network_fee_usd"] < 10
    assert agent.history() == []
    assert agent.spent_this_month() == 0
    assert base.balances(agent.address) == before
    assert router_may_take(base, agent.address) == 0


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"amount": "0"}, "amount"),
    ({"amount": "0.0000001"}, "amount"),
    ({"amount": True}, "amount"),
    ({"input_token": "SOL"}, "input_token"),
    ({"input_token": 1}, "input_token"),
    ({"input_token": None}, "input_token"),
    ({"output_token": "USDC"}, "output_token"),
    ({"output_token": "DAI"}, "output_token"),
    ({"chain": "polygon"}, "chain"),
    ({"slippage_bps": 501}, "slippage_bps"),
    ({"slippage_bps": -1}, "slippage_bps"),
    ({"slippage_bps": "50"}, "slippage_bps"),
    ({"slippage_bps": 1.5}, "slippage_bps"),
    ({"slippage_bps": True}, "slippage_bps"),
    ({"slippageBps": 10**400}, "slippage_bps"),
    ({"dry_run": 1}, "dry_run"),
]


def test_an_invalid_or_missing_field_swaps_nothing_and_is_reported(agent: Agent) -> None:
    usual = {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "1"}
    bodies = [({**usual, **change}, field) for change, field in BAD_FIELDS]
    bodies += [({name: value for name, value in usual.items() if name != missing}, missing) for missing in usual]
    for body, field in bodies:
        answer = agent.post(f"{agent.wallet_url}/swap", body)
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), body
        assert list(answer.get_json()["details"]["fields"]) == [field], body
        assert agent.history() == [], body


@pytest.mark.parametrize(
    ("given", "wanted", "amount", "reason"),
    [
        ("USDC", "ETH", "100.5", "insufficient_funds"),
        ("ETH", "USDC", "1", "insufficient_funds"),
        ("ETH", "USDC", "0.000000000000000001", "amount_too_small"),
        ("ETH", "USDC", "9" * 30, "price_deviation"),
        ("USDC", "ETH", "9" * 60, "price_deviation"),
    ],
)
def test_an_impossible_swap_is_refused_before_signing_and_not_counted(
    given: str, wanted: str, amount: str, reason: str, agent: Agent
) -> None:
    agent.unlimited()
    answer = swap(agent, given, wanted, amount)
    body = answer.get_json()
    assert (answer.status_code, body["code"], body["details"]["reason"]) == (500, "SWAP_FAILED", reason)
    row = agent.transaction(body["details"]["transaction_id"])
    assert (row["status"], row["tx_hash"], row["error"], row["output_amount"]) == ("failed", None, reason, None)
    assert agent.spent_this_month() == 0


def test_missing_gas_of_a_swap_is_reported(chain_client: FlaskClient, base_node: EvmNode) -> None:
    poor = register(chain_client)
    fund(base_node, poor.address, eth=0, dollars=10)
    details = swap(poor, "USDC", "ETH", "5").get_json()["details"]
    assert (details["reason"], details["currency"]) == ("insufficient_gas", "ETH")


def test_a_frozen_wallet_swaps_nothing(agent: Agent) -> None:
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, agent.id, frozen=True)
    for more in ({}, {"dry_run": True}):
        answer = swap(agent, "USDC", "ETH", "1", **more)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    assert agent.history() == []


def test_without_a_market_price_nothing_is_swapped_with_or_without_limits(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    app = build_app(sqlite_url, chains=chains, prices=MarketPriceFeed([], [], overrides={}))
    with app.app_context():
        poor = register(app.test_client())
        poor.unlimited()
        answer = swap(poor, "USDC", "ETH", "1")
        assert (answer.status_code, answer.get_json()["code"]) == (503, "PRICE_UNAVAILABLE")
        assert poor.history() == []


def test_the_same_idempotency_key_swaps_once(agent: Agent, base: EvmChain) -> None:
    first = swap(agent, "USDC", "ETH", "10", Idempotency_Key="s-1")
    again = swap(agent, "USDC", "ETH", "10", Idempotency_Key="s-1")
    assert first.get_json() == again.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert base.balances(agent.address).of(USDC).units == usdc(90)
    assert swap(agent, "USDC", "ETH", "11", Idempotency_Key="s-1").status_code == 409


def test_concurrent_swaps_of_one_wallet_use_consecutive_permit_nonces(agent: Agent, base: EvmChain) -> None:
    def one(_number: int) -> Any:
        with agent.client.application.app_context():
            client = agent.client.application.test_client()
            body = {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "5"}
            answer = client.post(f"{agent.wallet_url}/swap", json=body, headers=agent.headers())
            return answer.get_json()

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(one, range(8)))
    done = [answer for answer in answers if answer.get("status") == "confirmed"]
    # A swap that read the permit nonce while another was mined is certainly refused.
    others = [answer for answer in answers if answer.get("status") != "confirmed"]
    assert len(done) >= 2, answers
    assert all(answer.get("code") == "SWAP_FAILED" for answer in others), answers
    assert base.balances(agent.address).of(USDC).units == usdc(100) - usdc(5) * len(done)


@dataclass(frozen=True, slots=True)
class Faulty:
    """A funded agent on a node of its own, with a chain and an exchange that can fail."""

    agent: Agent
    chain: FaultyChain
    exchange: FaultyExchange
    real: EvmChain
    node: EvmNode

    def refused(self, *asked: Any, **more: Any) -> dict[str, Any]:
        answer = swap(self.agent, *asked, **more)
        body: dict[str, Any] = answer.get_json()
        assert (answer.status_code, body["code"]) == (500, "SWAP_FAILED"), body
        return body["details"]


def test_one_agent_cannot_use_up_the_quotes_of_all(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    app = build_app(sqlite_url, chains=chains, settings={"quote_rate_limit": "2 per hour"})
    with app.app_context():
        greedy, other = register(app.test_client()), register(app.test_client())
        for made in (greedy, other):
            fund(base_node, made.address, eth=1, dollars=100)
        statuses = [swap(greedy, "ETH", "USDC", "0.01", dry_run=True).status_code for _ in range(3)]
        assert statuses == [200, 200, 429]
        assert swap(greedy, "ETH", "USDC", "0.01").get_json()["code"] == "RATE_LIMITED"
        assert swap(other, "ETH", "USDC", "0.01", dry_run=True).status_code == 200


@pytest.fixture
def faulty(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Faulty]:
    real = evm_chain(own_base_node)
    chain, exchange = FaultyChain(real), FaultyExchange(UniswapExchange(real))
    app = build_app(sqlite_url, chains={ChainName.BASE: chain}, swap_exchanges={ChainName.BASE: exchange})
    with app.app_context():
        made = register(app.test_client())
        fund(own_base_node, made.address, eth=1, dollars=100)
        yield Faulty(made, chain, exchange, real, own_base_node)


@pytest.mark.parametrize(
    ("verb", "error", "reason"),
    [
        ("quote", Unreachable("chain_unreachable"), "chain_unreachable"),
        ("quote", Rejected("quote_unavailable"), "quote_unavailable"),
        ("quote", Rejected("no_liquidity"), "no_liquidity"),
        ("draft", Unreachable("chain_unreachable"), "chain_unreachable"),
        ("draft", Rejected("unsafe_instructions"), "unsafe_instructions"),
        ("sign", Rejected("unsafe_instructions"), "unsafe_instructions"),
    ],
)
def test_a_failure_before_signing_is_certain_and_recorded(
    verb: str, error: Exception, reason: str, faulty: Faulty
) -> None:
    faulty.exchange.raising(verb, "before", error)
    details = faulty.refused("USDC", "ETH", "10")
    assert details["reason"] == reason
    assert faulty.agent.transaction(details["transaction_id"])["status"] == "failed"
    assert faulty.agent.spent_this_month() == 0
    assert swap(faulty.agent, "USDC", "ETH", "10").get_json()["status"] == "confirmed"


def test_a_price_that_moves_between_quote_and_simulation_is_refused_before_signing(faulty: Faulty) -> None:
    def trade() -> None:
        move_price(faulty.node, faulty.real, given=USDC, units=500_000 * 10**6)

    faulty.exchange.fail("quote", "after", trade)
    assert faulty.refused("USDC", "ETH", "10")["reason"] == "price_moved"
    assert faulty.agent.spent_this_month() == 0


def test_a_freeze_during_the_quote_prevents_signing_and_pending_swaps_are_completed(faulty: Faulty) -> None:
    sent = swap(faulty.agent, "USDC", "ETH", "10", Prefer="respond-async").get_json()

    def freeze() -> None:
        with unit_of_work() as session:
            spending_accounts.set_frozen(session, faulty.agent.id, frozen=True)

    faulty.exchange.fail("draft", "after", freeze)
    answer = swap(faulty.agent, "USDC", "ETH", "10")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    assert [row["id"] for row in faulty.agent.history()] == [sent["transaction_id"]]
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=True):
        confirmation.confirm(ChainName.BASE)
    assert faulty.agent.transaction(sent["transaction_id"])["status"] == "confirmed"
    assert faulty.real.balances(faulty.agent.address).of(USDC).units == usdc(90)


def test_a_pool_price_too_far_below_the_market_is_refused(faulty: Faulty) -> None:
    move_price(faulty.node, faulty.real, given=USDC, units=500_000 * 10**6)
    details = faulty.refused("USDC", "ETH", "10", slippage_bps=500)
    assert details["reason"] == "price_deviation"
    assert float(details["quoted"]) < float(details["required"])


def test_a_price_that_moves_after_signing_reverts_the_swap_and_releases_the_hold(faulty: Faulty) -> None:
    def trade() -> None:
        move_price(faulty.node, faulty.real, given=USDC, units=500_000 * 10**6)

    faulty.exchange.fail("sign", "after", lambda: None)
    faulty.chain.fail("broadcast", "before", trade)
    details = faulty.refused("USDC", "ETH", "10")
    assert details["reason"] == "reverted"
    assert details["tx_hash"]
    assert faulty.real.balances(faulty.agent.address).of(USDC).units == usdc(100)
    assert router_may_take(faulty.real, faulty.agent.address) == 0
    assert faulty.agent.spent_this_month() == 0


@pytest.mark.parametrize("error", [OutcomeUnknown("answer_lost"), Unreachable("chain_unreachable")])
def test_a_lost_response_of_the_node_leads_to_one_swap(error: Exception, faulty: Faulty) -> None:
    faulty.chain.raising("broadcast", "after", error)
    body = swap(faulty.agent, "USDC", "ETH", "10").get_json()
    assert body["status"] == "confirmed"
    assert faulty.real.balances(faulty.agent.address).of(USDC).units == usdc(90)


def test_the_output_of_a_pending_swap_is_the_quoted_one(faulty: Faulty) -> None:
    faulty.chain.raising("broadcast", "before", Unreachable("chain_unreachable"))
    body = swap(faulty.agent, "USDC", "ETH", "10", Prefer="respond-async").get_json()
    quoted = swap(faulty.agent, "USDC", "ETH", "10", dry_run=True).get_json()
    assert (body["status"], body["output_amount"]) == ("pending", quoted["output_amount"])
    # For the next movement, signed amounts are already spent.
    assert faulty.refused("USDC", "ETH", "95")["reason"] == "insufficient_funds"


def test_the_output_of_a_swap_fulfils_no_funding_request(faulty: Faulty) -> None:
    held = [each for each in faulty.chain.real.balances(faulty.agent.address).amounts if each.units]
    for currency in ("USDC", "ETH"):
        path = f"{faulty.agent.wallet_url}/fund"
        faulty.agent.post(path, {"chain": "base", "currency": currency, "amount": "0.000001"})
    assert swap(faulty.agent, "USDC", "ETH", "10").get_json()["status"] == "confirmed"
    assert swap(faulty.agent, "ETH", "USDC", "0.01").get_json()["status"] == "confirmed"
    faulty.node.mine(8)
    assert scanner.scan(ChainName.BASE) == len(held), "outputs of swaps are no deposits"
    assert {row["status"] for row in faulty.agent.history(type="funding") if row["kind"] is None} == {"pending"}
    fund(faulty.node, faulty.agent.address, eth=0.5, dollars=1)
    faulty.node.mine(8)
    assert scanner.scan(ChainName.BASE) == 2
    assert {row["status"] for row in faulty.agent.history(type="funding")} == {"confirmed"}


def test_a_swap_by_a_tool_is_made_once_however_often_it_is_retried(agent: Agent, base: EvmChain) -> None:
    order = {"wallet_id": agent.wallet_id, "chain": "base", "input_token": "USDC", "output_token": "ETH"}
    results = [call(agent.client, "swap", agent.key, **order, amount="30", request_id="swap-1") for _ in range(3)]
    assert results[0]["structuredContent"]["status"] == "confirmed", results[0]
    assert [each["structuredContent"] for each in results] == [results[0]["structuredContent"]] * 3
    assert base.balances(agent.address).of(USDC).units == usdc(70)
