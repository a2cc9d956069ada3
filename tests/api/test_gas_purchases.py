"""Swaps and bridges of wallets that hold USDC alone: they buy the native token from the service first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select

from app.adapters.swaps.jupiter.exchange import JupiterExchange
from app.adapters.swaps.uniswap import UniswapExchange
from app.approvals import service as approvals
from app.approvals.service import OwnerMethod
from app.core import clock
from app.core.chains import ETH, SOL, USDC, ChainName, native
from app.core.money import parse_amount
from app.db.tables import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.payments import treasury
from app.payments.settlement_capacity import SettlementCapacityCache
from app.ports.errors import Unreachable
from app.state import app_state
from app.wallets.core.models import SignedAttempt, Transaction
from app.wallets.deposits import scanner
from sandbox.bridges import BridgeServer
from sandbox.evm import EvmNode
from sandbox.jupiter import JupiterServer
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.bridges import Workers, bridge, running_bridges
from tests.support.chains import evm_chain, fund, usdc
from tests.support.faults import FaultyChain
from tests.support.payments import facilitator_of
from tests.support.solana import fund_solana, solana_chain
from tests.support.swaps import swap
from tests.support.waiting import wait_until
from workers import approvals as approved_payments
from workers import confirmations

pytestmark = pytest.mark.chain
BASE, ETHEREUM, SOLANA = ChainName.BASE, ChainName.ETHEREUM, ChainName.SOLANA
PRICES = {ETH: 3000, SOL: 150}


@pytest.fixture(scope="module")
def services(ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode) -> Iterator[BridgeServer]:
    urls = {"ethereum": ethereum_node.url, "base": base_node.url, "solana": solana_node.url}
    with running_bridges(**urls) as server:
        yield server


@pytest.fixture(scope="module")
def jupiter(solana_node: SolanaNode) -> Iterator[JupiterServer]:
    server = JupiterServer(solana_node.url)
    server.start()
    yield server
    server.stop()


@dataclass(frozen=True, slots=True)
class Market:
    """An agent without any native token, and the service that sells it some."""

    agent: Agent
    chains: dict[ChainName, FaultyChain]
    nodes: dict[ChainName, Any]

    def address(self, chain: ChainName) -> str:
        return self.agent.solana_address if chain is SOLANA else self.agent.address

    def fund(self, chain: ChainName, *, dollars: float, native: float = 0) -> None:
        if chain is SOLANA:
            fund_solana(self.nodes[chain], self.address(chain), sol=native, dollars=dollars)
        else:
            fund(self.nodes[chain], self.address(chain), eth=native, dollars=dollars)

    def held(self, chain: ChainName, address: str | None = None) -> tuple[int, int]:
        """Return units of the native token, and of USDC."""
        found = self.chains[chain].real.balances(address or self.address(chain))
        return found.of(native(chain)).units, found.of(USDC).units

    def sold_usd(self, chain: ChainName, before: int) -> float:
        """Return the value that the settlement wallet has spent since it held `before` units."""
        token = native(chain)
        spent = before - self.held(chain, treasury.settler(chain))[0]
        return spent * PRICES[token] / 10**token.decimals

    def purchases(self) -> list[dict[str, Any]]:
        return [row for row in self.agent.history() if row["kind"] == "gas"]

    def lose_broadcasts(self, chain: ChainName) -> None:
        """Let the node miss what is broadcast from now on, but not what workers broadcast again."""
        self.chains[chain].raising("broadcast", "before", Unreachable("node_down"), times=100)

    def run_workers(self, *, minutes: int = 1) -> None:
        with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
            for chain in self.chains:
                confirmations.confirm(chain.value)


@pytest.fixture
def market(
    build_app: Callable[..., Flask],
    sqlite_url: str,
    ethereum_node: EvmNode,
    base_node: EvmNode,
    solana_node: SolanaNode,
    services: BridgeServer,
    jupiter: JupiterServer,
    settings: dict[str, Any],
) -> Iterator[Market]:
    real: dict[ChainName, Any] = {
        ETHEREUM: evm_chain(ethereum_node), BASE: evm_chain(base_node), SOLANA: solana_chain(solana_node)
    }  # fmt: skip
    chains = {name: FaultyChain(chain) for name, chain in real.items()}
    exchanges = {BASE: UniswapExchange(real[BASE]), SOLANA: JupiterExchange(real[SOLANA], jupiter.url)}
    app = build_app(
        sqlite_url,
        settings={"cctp_attestation_url": services.url, **settings},
        chains=chains,
        facilitators={name: facilitator_of(chain) for name, chain in chains.items()},
        swap_exchanges=exchanges,
    )
    nodes = {ETHEREUM: ethereum_node, BASE: base_node, SOLANA: solana_node}
    with app.app_context():
        for name in (ETHEREUM, BASE):
            fund(nodes[name], treasury.settler(name), eth=1)
        fund_solana(solana_node, treasury.settler(SOLANA), sol=1)
        fund_solana(solana_node, treasury.recipient(SOLANA), sol=0, dollars=1)
        yield Market(register(app.test_client()), chains, nodes)


@pytest.mark.parametrize(("chain", "token"), [(BASE, "ETH"), (SOLANA, "SOL")])
def test_a_swap_buys_what_it_lacks_and_pays_for_it_in_usdc(market: Market, chain: ChainName, token: str) -> None:
    market.fund(chain, dollars=100)
    treasury_before = market.held(chain, treasury.recipient(chain))[1]
    settler_before = market.held(chain, treasury.settler(chain))[0]
    quoted = swap(market.agent, "USDC", token, "30", chain=chain.value, dry_run=True).get_json()
    answer = swap(market.agent, "USDC", token, "30", chain=chain.value)
    assert answer.get_json().get("status") == "confirmed", answer.get_json()
    market.run_workers()
    (purchase,) = market.purchases()
    assert (purchase["type"], purchase["status"], purchase["currency"]) == ("payment", "confirmed", "USDC")
    price = usdc(float(purchase["amount"]))
    assert price == pytest.approx(usdc(float(quoted["gas_fee"])), rel=0.5)
    assert market.held(chain, treasury.recipient(chain))[1] - treasury_before == price
    native_units, dollars = market.held(chain)
    assert dollars == usdc(70) - price
    output = parse_amount(answer.get_json()["output_amount"], native(chain)).units
    assert native_units > output * 0.99
    # The price covers what the service has spent, and not much more.
    spent = market.sold_usd(chain, settler_before)
    assert 0 < spent <= price / 10**6 <= spent * 1.5 + 0.01
    counted = market.agent.spent_this_month()
    assert counted == pytest.approx(answer_cost(market, answer) + price / 10**6)


def test_what_the_service_sold_is_listed_as_such_and_not_as_a_deposit(market: Market) -> None:
    market.fund(BASE, dollars=100)
    assert swap(market.agent, "USDC", "ETH", "30", chain="base").get_json()["status"] == "confirmed"
    market.run_workers()
    market.nodes[BASE].mine(5)
    scanner.scan(BASE)
    found = {row["kind"]: row for row in market.agent.history(type="funding")}
    assert found.keys() == {"deposit", "gas_sale"}
    assert (found["deposit"]["amount"], found["deposit"]["currency"]) == ("100", "USDC")
    assert (found["gas_sale"]["currency"], found["gas_sale"]["status"]) == ("ETH", "confirmed")
    assert found["gas_sale"]["from_address"] == treasury.settler(BASE)


def answer_cost(market: Market, answer: Any) -> float:
    cost: float = market.agent.transaction(answer.get_json()["transaction_id"])["cost_usd"]
    return cost


@pytest.mark.parametrize(("source", "destination"), [(a, b) for a in ChainName for b in ChainName if a is not b])
def test_a_wallet_with_usdc_on_one_chain_alone_bridges_it_to_any_other(
    market: Market, source: ChainName, destination: ChainName
) -> None:
    market.fund(source, dollars=100)
    quoted = bridge(market.agent, source.value, destination.value, "50", dry_run=True).get_json()
    answer = bridge(market.agent, source.value, destination.value, "50")
    assert answer.status_code == 200, answer.get_json()
    row = Workers(market.agent, *ChainName).finish(answer.get_json()["transaction_id"])
    assert row["status"] == "confirmed", row
    purchases = market.purchases()
    price = sum(usdc(float(each["amount"])) for each in purchases)
    assert {each["status"] for each in purchases} == {"confirmed"}
    assert price == pytest.approx(usdc(float(quoted["gas_fee"])), rel=0.5)
    assert market.held(source)[1] == usdc(50) - price
    assert market.held(destination)[1] == parse_amount(row["received_amount"], USDC).units > usdc(49)


def test_nothing_is_bought_with_enough_gas_or_if_the_wallet_shall_pay_itself(market: Market) -> None:
    market.fund(BASE, dollars=100)
    refused = swap(market.agent, "USDC", "ETH", "30", gas="own").get_json()
    assert refused["details"]["reason"] == "insufficient_gas"
    refused = bridge(market.agent, "base", "ethereum", "30", gas="own").get_json()
    assert refused["details"]["reason"] == "insufficient_gas"
    market.fund(BASE, dollars=100, native=1)
    for gas in ("auto", "sponsored"):
        quoted = swap(market.agent, "USDC", "ETH", "30", gas=gas, dry_run=True).get_json()
        assert quoted["gas_fee"] is None
        assert swap(market.agent, "USDC", "ETH", "30", gas=gas).get_json()["status"] == "confirmed"
    assert market.purchases() == []
    assert swap(market.agent, "USDC", "ETH", "30", gas="free").status_code == 400


def test_a_purchase_that_has_not_arrived_is_answered_503_and_is_made_once(market: Market) -> None:
    market.fund(BASE, dollars=100)
    market.lose_broadcasts(BASE)
    key = {"Idempotency_Key": "one"}
    for _ in range(2):
        answer = swap(market.agent, "USDC", "ETH", "30", Prefer="wait=1", **key)
        body = answer.get_json()
        assert (answer.status_code, body["code"]) == (503, "GAS_PENDING"), body
        assert int(answer.headers["Retry-After"]) >= 1
    assert [row["status"] for row in market.agent.history()] == ["pending"]
    market.run_workers()
    market.run_workers(minutes=3)
    market.chains[BASE].faults.clear()
    done = swap(market.agent, "USDC", "ETH", "30", **key).get_json()
    assert done["status"] == "confirmed", done
    (purchase,) = market.purchases()
    assert market.held(BASE)[1] == usdc(70) - usdc(float(purchase["amount"]))


def test_limits_funds_and_the_number_per_day_are_checked_before_anything_is_bought(market: Market) -> None:
    market.fund(BASE, dollars=30)
    refused = swap(market.agent, "USDC", "ETH", "30").get_json()
    assert refused["details"]["reason"] == "insufficient_funds"
    market.fund(BASE, dollars=100)
    market.agent.controls(daily_limit_usd=0.01)
    assert swap(market.agent, "USDC", "ETH", "30").get_json()["code"] == "DAILY_LIMIT_EXCEEDED"
    market.agent.controls(daily_limit_usd=100)
    too_small = swap(market.agent, "USDC", "ETH", "0.001").get_json()
    assert too_small["details"]["reason"] == "gas_fee_too_high"
    assert market.purchases() == []
    assert market.agent.spent_this_month() == 0


@pytest.mark.parametrize("settings", [{"sponsored_per_day": 0}, {"sponsored_per_day": 1}], indirect=True)
def test_an_operator_limits_or_ends_the_sale(market: Market) -> None:
    per_day = app_state().settings.sponsored_per_day
    for number, chain in enumerate((BASE, ETHEREUM)):
        market.fund(chain, dollars=100)
        destination = ETHEREUM if chain is BASE else BASE
        answer = bridge(market.agent, chain.value, destination.value, "30").get_json()
        if number < per_day:
            assert answer["status"] == "pending", answer
        else:
            reason = "sponsored_limit" if per_day else "insufficient_gas"
            assert answer["details"]["reason"] == reason


def test_a_seller_keeps_what_it_needs_to_settle_payments(market: Market) -> None:
    market.fund(BASE, dollars=100)
    settler = treasury.settler(BASE)
    capacity = app_state().part(SettlementCapacityCache)
    found = capacity.get(BASE)
    assert found is not None
    # Enough for twenty submissions, but not for a sale besides.
    market.nodes[BASE].rpc("anvil_setBalance", settler, hex(found.fee_units * 20 + 1))
    capacity.clear()
    refused = swap(market.agent, "USDC", "ETH", "30").get_json()
    assert refused["details"]["reason"] == "insufficient_gas"
    assert swap(market.agent, "USDC", "ETH", "30", dry_run=True).get_json()["details"]["reason"] == ("insufficient_gas")
    assert market.purchases() == []


def test_sales_to_many_agents_never_take_what_settling_payments_needs(market: Market) -> None:
    settler = treasury.settler(BASE)
    market.fund(BASE, dollars=100)
    before = market.held(BASE, settler)[0]
    assert swap(market.agent, "USDC", "ETH", "30").get_json()["status"] == "confirmed"
    cost = before - market.held(BASE, settler)[0]
    # All of them read the capacity from the same cache, which is as it was before the first sale.
    capacity = app_state().part(SettlementCapacityCache)
    capacity.clear()
    found = capacity.get(BASE)
    assert found is not None
    reserve = 20 * found.fee_units
    market.nodes[BASE].rpc("anvil_setBalance", settler, hex(reserve + 4 * cost))
    capacity.clear()
    outcomes = []
    for _ in range(8):
        agent = register(market.agent.client)
        fund(market.nodes[BASE], agent.address, eth=0, dollars=100)
        answer = swap(agent, "USDC", "ETH", "30").get_json()
        outcomes.append(answer.get("status") or answer["details"]["reason"])
    assert set(outcomes) == {"confirmed", "insufficient_gas"}
    assert market.held(BASE, settler)[0] >= reserve


def test_a_bridge_that_cannot_pay_for_both_chains_buys_nothing_on_either(market: Market) -> None:
    market.fund(BASE, dollars=100)
    of_both, of_source = (
        float(bridge(market.agent, "base", to, "50", dry_run=True).get_json()["gas_fee"])
        for to in ("solana", "ethereum")
    )
    market = replace(market, agent=register(market.agent.client))
    # Enough for what it lacks on Solana, and for half of what it lacks on Base.
    market.fund(BASE, dollars=round(50 + of_both - of_source / 2, 6))
    before = market.held(BASE)
    for more in ({"dry_run": True}, {}):
        refused = bridge(market.agent, "base", "solana", "50", **more).get_json()
        assert refused["details"]["reason"] == "insufficient_funds", refused
    assert market.purchases() == []
    assert market.held(BASE) == before


def test_a_wallet_that_lacks_little_buys_enough_for_a_rise_of_fees(market: Market) -> None:
    market.fund(BASE, dollars=100)
    node = market.nodes[BASE]
    refused = swap(market.agent, "USDC", "ETH", "30", gas="own").get_json()
    required = parse_amount(refused["details"]["required"], ETH).units
    node.rpc("anvil_setBalance", market.address(BASE), hex(required * 9 // 10))
    base_fee = int(node.rpc("eth_feeHistory", "0x1", "latest", [])["baseFeePerGas"][-1], 16)
    market.chains[BASE].fail(
        "broadcast", "before", lambda: node.rpc("anvil_setNextBlockBaseFeePerGas", hex(base_fee * 5 // 4))
    )
    answer = swap(market.agent, "USDC", "ETH", "30").get_json()
    assert answer.get("status") == "confirmed", answer
    assert len(market.purchases()) == 1


def test_a_client_that_prefers_not_to_wait_does_not_wait_for_the_ether_either(market: Market) -> None:
    market.fund(BASE, dollars=100)
    answer = swap(market.agent, "USDC", "ETH", "30", Prefer="respond-async")
    assert answer.get_json()["code"] == "GAS_PENDING"
    assert "outcomes" not in market.chains[BASE].calls
    market.run_workers()
    done = swap(market.agent, "USDC", "ETH", "30", Prefer="respond-async").get_json()
    assert done["status"] == "pending"
    assert len(market.purchases()) == 1


def test_the_owner_approves_what_is_paid_and_not_its_network_fee(market: Market) -> None:
    market.fund(BASE, dollars=100)
    market.agent.controls(approval_threshold_usd=0.000001)
    to = "0x" + "c0ffee00" * 5
    asked = [market.agent.move("2", "USDC", to=to), swap(market.agent, "USDC", "ETH", "30")]
    for answer in asked:
        assert answer.status_code == 202, answer.get_json()
        approval_id = answer.get_json()["approval"]["id"]
        waiting, method = approvals.get(approval_id), OwnerMethod.OWNER_KEY
        with unit_of_work() as session:
            assert approvals.decide(session, waiting, is_approved=True, method=method)
        approved_payments.execute()
        # A worker does not wait for the ether: it executes the swap when it is due again.
        with time_machine.travel(clock.now().timestamp() + 30, tick=True):
            confirmations.confirm(BASE.value)
            approved_payments.execute()
        found = market.agent.get(f"/v1/approvals/{approval_id}").get_json()
        assert found["status"] == "executed", found
    market.run_workers()
    rows = {(row["type"], row["kind"]): row["status"] for row in market.agent.history()}
    expected = [("transfer", None), ("payment", "gas"), ("swap", None)]
    assert rows == dict.fromkeys(expected, "confirmed")
    assert len(market.purchases()) == 2


def test_a_delivery_that_expires_on_solana_is_signed_until_it_arrives_and_is_paid_once(market: Market) -> None:
    market.fund(BASE, dollars=100)
    solana = market.chains[SOLANA]
    for verb in ("broadcast", "rebroadcast"):
        solana.raising(verb, "before", Unreachable("node_down"), times=10_000)
    answer = bridge(market.agent, "base", "solana", "50", Prefer="wait=1")
    assert answer.get_json()["code"] == "GAS_PENDING", answer.get_json()

    def attempts() -> int:
        # A blockhash expires after 150 slots.
        market.nodes[SOLANA].advance(160)
        market.run_workers()
        with read_only_unit() as session:
            sold = select(Transaction.id).where(Transaction.kind == "gas_sale", Transaction.chain == "solana")
            return count(session, SignedAttempt, SignedAttempt.transaction_id.in_(sold))

    wait_until(lambda: attempts() >= 3, what="two deliveries expire")
    solana.faults.clear()

    def arrives() -> bool:
        market.run_workers()
        return market.held(SOLANA)[0] > 0

    wait_until(arrives, what="one arrives")
    answer = bridge(market.agent, "base", "solana", "50")
    assert answer.status_code == 200, answer.get_json()
    (purchase,) = market.purchases()
    assert market.held(BASE)[1] == usdc(50) - usdc(float(purchase["amount"]))


def test_a_dry_run_quotes_the_network_fee_that_the_wallet_can_pay_itself(market: Market) -> None:
    market.fund(BASE, dollars=100, native=1)
    quoted = bridge(market.agent, "base", "solana", "50", dry_run=True).get_json()
    assert (float(quoted["network_fee"]) > 0, quoted["network_fee_currency"]) == (True, "ETH"), quoted
    assert float(quoted["gas_fee"]) > 0
