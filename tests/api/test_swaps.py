"""Swaps on a real exchange on real nodes: what is answered, recorded, counted, and moved to the last unit."""

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
from app.adapters.prices import MarketPrices
from app.adapters.uniswap.exchange import UniswapExchange
from app.core import clock
from app.core.chains import ETH, SOL, USDC, ChainName, Token
from app.core.money import TokenAmount, parse_amount
from app.core.unit_of_work import unit_of_work
from app.ports.errors import OutcomeUnknown, Rejected, Unreachable
from app.spending import service as spending
from app.wallets import deposits, tracking
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import ether, evm_chain, fund, usdc
from tests.support.faults import FaultyChain, FaultyExchange
from tests.support.swaps import move_price, router_may_take, swap

pytestmark = pytest.mark.chain


@pytest.fixture
def chain_client(chain_app: Flask) -> Iterator[FlaskClient]:
    with chain_app.app_context():
        yield chain_app.test_client()


@pytest.fixture
def agent(chain_client: FlaskClient, base_node: EvmNode) -> Agent:
    """An agent with 1 ETH and 100 USDC on Base."""
    made = register(chain_client)
    fund(base_node, made.address, eth=1, dollars=100)
    return made


@pytest.fixture
def base(chains: dict[ChainName, EvmChain]) -> EvmChain:
    return chains[ChainName.BASE]


@pytest.mark.parametrize("chain", ["base", "ethereum"])
def test_ether_becomes_usdc_to_the_unit_that_the_chain_tells(
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
def test_usdc_becomes_ether_by_one_permit_and_nothing_is_left_to_anybody(
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


def test_only_what_a_swap_may_lose_counts_against_the_limits(agent: Agent) -> None:
    body = swap(agent, "USDC", "ETH", "90", slippage_bps=100).get_json()
    assert body["status"] == "confirmed"
    row = agent.transaction(body["transaction_id"])
    least = parse_amount(body["minimum_output_amount"], ETH).units
    lost = 90 - least * 3000 / 10**18
    assert row["cost_usd"] == pytest.approx(lost, abs=1e-6)
    assert 0.8 < row["cost_usd"] < 1.2
    assert agent.spent_today() == row["cost_usd"]


class _Fixed:
    """A source of prices that says one thing."""

    def __init__(self, dollars: int) -> None:
        self._dollars = dollars

    def read(self) -> dict[Token, int]:
        return {ETH: self._dollars * 10**9, SOL: 150 * 10**9}


@pytest.mark.parametrize(("given", "wanted", "amount"), [("USDC", "ETH", "90"), ("ETH", "USDC", "0.03")])
def test_where_sources_differ_a_swap_counts_what_it_may_lose_by_the_worse_of_them(
    given: str,
    wanted: str,
    amount: str,
    build_app: Callable[..., Flask],
    sqlite_url: str,
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
) -> None:
    # The pool trades at 3000; what is given counts at the higher price, what comes back at the lower.
    prices = MarketPrices([_Fixed(2985), _Fixed(3015)], [], overrides={})
    app = build_app(sqlite_url, chains=chains, prices=prices)
    with app.app_context():
        agent = register(app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        found = swap(agent, given, wanted, amount, dry_run=True).get_json()
        gives = {"USDC": 1, "ETH": 3015}[given] * float(amount)
        least = {"USDC": 1, "ETH": 2985}[wanted] * float(found["minimum_output_amount"])
        assert found["value_usd"] == pytest.approx(gives - least, abs=1e-5)
        assert found["value_usd"] > 0.8


def test_a_limit_below_what_may_be_lost_stops_a_swap_before_it_is_signed(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=0.4)
    answer = swap(agent, "USDC", "ETH", "90", slippage_bps=100)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert agent.history() == []
    assert swap(agent, "USDC", "ETH", "20", slippage_bps=50).get_json()["status"] == "confirmed"


def test_an_allowlist_of_recipients_does_not_keep_a_wallet_from_paying_itself(agent: Agent) -> None:
    agent.controls(allowed_addresses=["0x00000000000000000000000000000000C0FFEE00"])
    assert swap(agent, "ETH", "USDC", "0.001").get_json()["status"] == "confirmed"


def test_both_spellings_of_every_field_say_the_same(agent: Agent) -> None:
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


def test_a_dry_run_tells_output_way_loss_and_fees_and_signs_nothing(agent: Agent, base: EvmChain) -> None:
    before = base.balances(agent.address)
    for given, wanted, amount in (("ETH", "USDC", "0.01"), ("USDC", "ETH", "30")):
        found = swap(agent, given, wanted, amount, dry_run=True, Idempotency_Key="k").get_json()
        assert (found["dry_run"], found["input_amount"], found["network_fee_currency"]) == (
            True,
            amount,
            "ETH",
        )
        assert found["route"] == "Uniswap V3, 0.05 %"
        assert float(found["minimum_output_amount"]) < float(found["output_amount"])
        assert 0 < found["value_usd"] < 1
        assert 0 < found["network_fee_usd"] < 10
    assert agent.history() == []
    assert agent.spent_today() == 0
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


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS)
def test_a_bad_field_swaps_nothing_and_is_named(change: dict[str, Any], field: str, agent: Agent) -> None:
    body = {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "1", **change}
    answer = agent.post(f"{agent.wallet_url}/swap", body)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == [field]
    assert agent.history() == []


@pytest.mark.parametrize("field", ["chain", "input_token", "output_token", "amount"])
def test_a_missing_field_swaps_nothing_and_is_named(field: str, agent: Agent) -> None:
    body = {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "1"}
    del body[field]
    answer = agent.post(f"{agent.wallet_url}/swap", body)
    assert (answer.status_code, list(answer.get_json()["details"]["fields"])) == (400, [field])


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
def test_what_cannot_be_swapped_is_refused_before_signing_and_counts_nothing(
    given: str, wanted: str, amount: str, reason: str, agent: Agent
) -> None:
    agent.unlimited()
    answer = swap(agent, given, wanted, amount)
    body = answer.get_json()
    assert (answer.status_code, body["code"], body["details"]["reason"]) == (500, "SWAP_FAILED", reason)
    row = agent.transaction(body["details"]["transaction_id"])
    assert (row["status"], row["tx_hash"], row["error"], row["output_amount"]) == (
        "failed",
        None,
        reason,
        None,
    )
    assert agent.spent_today() == 0


def test_a_wallet_without_gas_learns_what_is_missing(chain_client: FlaskClient, base_node: EvmNode) -> None:
    poor = register(chain_client)
    fund(base_node, poor.address, eth=0, dollars=10)
    details = swap(poor, "USDC", "ETH", "5").get_json()["details"]
    assert (details["reason"], details["currency"]) == ("insufficient_gas", "ETH")


def test_another_agent_s_wallet_is_not_there(agent: Agent, chain_client: FlaskClient) -> None:
    stranger = register(chain_client)
    answer = stranger.post(f"{agent.wallet_url}/swap", {"nonsense": True})
    assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND")
    assert agent.client.post(f"{agent.wallet_url}/swap", json={}).status_code == 401


def test_a_frozen_wallet_swaps_nothing(agent: Agent) -> None:
    with unit_of_work():
        spending.freeze(agent.id)
    for more in ({}, {"dry_run": True}):
        answer = swap(agent, "USDC", "ETH", "1", **more)
        assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    assert agent.history() == []


def test_without_a_market_price_nothing_is_swapped_with_or_without_limits(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    app = build_app(sqlite_url, chains=chains, prices=MarketPrices([], [], overrides={}))
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


def test_swaps_of_one_wallet_at_once_number_their_permits_one_after_another(
    agent: Agent, base: EvmChain
) -> None:
    def one(_number: int) -> Any:
        with agent.client.application.app_context():
            client = agent.client.application.test_client()
            body = {"chain": "base", "input_token": "USDC", "output_token": "ETH", "amount": "5"}
            answer = client.post(f"{agent.wallet_url}/swap", json=body, headers=agent.headers())
            return answer.get_json()

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(one, range(4)))
    done = [answer for answer in answers if answer.get("status") == "confirmed"]
    # One that read the permit's number while another was mined is refused for certain, and nothing else happens.
    others = [answer for answer in answers if answer.get("status") != "confirmed"]
    assert len(done) >= 2, answers
    assert all(answer.get("code") == "SWAP_FAILED" for answer in others), answers
    assert base.balances(agent.address).of(USDC).units == usdc(100) - usdc(5) * len(done)


@dataclass(frozen=True, slots=True)
class Faulty:
    """A funded agent on a node of its own, whose chain and exchange can be told to fail."""

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


@pytest.fixture
def faulty(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[Faulty]:
    real = evm_chain(own_base_node)
    chain, exchange = FaultyChain(real), FaultyExchange(UniswapExchange(real))
    app = build_app(
        sqlite_url,
        chains={ChainName.BASE: chain},
        exchanges={ChainName.BASE: exchange},
        settings={"confirmation_wait_seconds": "2"},
    )
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
def test_what_fails_before_signing_is_certain_and_recorded(
    verb: str, error: Exception, reason: str, faulty: Faulty
) -> None:
    faulty.exchange.raising(verb, "before", error)
    details = faulty.refused("USDC", "ETH", "10")
    assert details["reason"] == reason
    assert faulty.agent.transaction(details["transaction_id"])["status"] == "failed"
    assert faulty.agent.spent_today() == 0
    assert swap(faulty.agent, "USDC", "ETH", "10").get_json()["status"] == "confirmed"


def test_a_price_that_moves_between_quote_and_simulation_is_refused_before_signing(faulty: Faulty) -> None:
    def trade() -> None:
        move_price(faulty.node, faulty.real, given=USDC, units=500_000 * 10**6)

    faulty.exchange.fail("quote", "after", trade)
    assert faulty.refused("USDC", "ETH", "10")["reason"] == "price_moved"
    assert faulty.agent.spent_today() == 0


def test_a_wallet_that_is_frozen_while_its_swap_is_quoted_signs_nothing_and_what_is_sent_is_finished(
    faulty: Faulty,
) -> None:
    sent = swap(faulty.agent, "USDC", "ETH", "10", Prefer="respond-async").get_json()

    def freeze() -> None:
        with unit_of_work():
            spending.freeze(faulty.agent.id)

    faulty.exchange.fail("draft", "after", freeze)
    answer = swap(faulty.agent, "USDC", "ETH", "10")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    assert [row["id"] for row in faulty.agent.history()] == [sent["transaction_id"]]
    with time_machine.travel(clock.now() + timedelta(minutes=1), tick=True):
        tracking.confirm(ChainName.BASE)
    assert faulty.agent.transaction(sent["transaction_id"])["status"] == "confirmed"
    assert faulty.real.balances(faulty.agent.address).of(USDC).units == usdc(90)


def test_a_pool_that_offers_too_much_less_than_the_market_is_not_traded_with(faulty: Faulty) -> None:
    move_price(faulty.node, faulty.real, given=USDC, units=500_000 * 10**6)
    details = faulty.refused("USDC", "ETH", "10", slippage_bps=500)
    assert details["reason"] == "price_deviation"
    assert float(details["quoted"]) < float(details["required"])


def test_a_price_that_moves_after_signing_reverts_costs_the_fee_and_gives_the_limit_back(
    faulty: Faulty,
) -> None:
    def trade() -> None:
        move_price(faulty.node, faulty.real, given=USDC, units=500_000 * 10**6)

    faulty.exchange.fail("sign", "after", lambda: None)
    faulty.chain.fail("broadcast", "before", trade)
    details = faulty.refused("USDC", "ETH", "10")
    assert details["reason"] == "reverted"
    assert details["tx_hash"]
    assert faulty.real.balances(faulty.agent.address).of(USDC).units == usdc(100)
    assert router_may_take(faulty.real, faulty.agent.address) == 0
    assert faulty.agent.spent_today() == 0


@pytest.mark.parametrize("error", [OutcomeUnknown("answer_lost"), Unreachable("chain_unreachable")])
def test_a_node_that_takes_the_swap_and_loses_the_answer_leads_to_one_swap(
    error: Exception, faulty: Faulty
) -> None:
    faulty.chain.raising("broadcast", "after", error)
    body = swap(faulty.agent, "USDC", "ETH", "10").get_json()
    assert body["status"] == "confirmed"
    assert faulty.real.balances(faulty.agent.address).of(USDC).units == usdc(90)


def test_while_a_swap_is_pending_its_output_is_the_quote_s(faulty: Faulty) -> None:
    faulty.chain.raising("broadcast", "before", Unreachable("chain_unreachable"))
    body = swap(faulty.agent, "USDC", "ETH", "10", Prefer="respond-async").get_json()
    quoted = swap(faulty.agent, "USDC", "ETH", "10", dry_run=True).get_json()
    assert (body["status"], body["output_amount"]) == ("pending", quoted["output_amount"])
    # What is signed is gone as far as the next movement is concerned.
    assert faulty.refused("USDC", "ETH", "95")["reason"] == "insufficient_funds"


def test_what_a_swap_brings_fulfils_no_funding_request(faulty: Faulty) -> None:
    for currency in ("USDC", "ETH"):
        path = f"{faulty.agent.wallet_url}/fund"
        faulty.agent.post(path, {"chain": "base", "currency": currency, "amount": "0.000001"})
    assert swap(faulty.agent, "USDC", "ETH", "10").get_json()["status"] == "confirmed"
    assert swap(faulty.agent, "ETH", "USDC", "0.01").get_json()["status"] == "confirmed"
    faulty.node.mine(8)
    assert deposits.find(ChainName.BASE) == 0
    assert {row["status"] for row in faulty.agent.history(type="funding")} == {"pending"}
    fund(faulty.node, faulty.agent.address, eth=0.5, dollars=1)
    faulty.node.mine(8)
    assert deposits.find(ChainName.BASE) == 2
    assert {row["status"] for row in faulty.agent.history(type="funding")} == {"confirmed"}
