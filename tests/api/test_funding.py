"""Funding requests over the API, fulfilled by real deposits."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.adapters.faucet_http import HttpFaucet
from app.core import clock, identifiers
from app.core.chains import ETH, USDC, ChainName
from app.jobs import JobName
from app.ports.errors import Unreachable
from app.state import app_state
from app.wallets.deposits import funding, scanner
from sandbox.evm import EvmNode
from sandbox.faucet import Faucet, FaucetServer, PaymentLedger
from sandbox.payers import EvmPayer
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import CONFIRMATIONS, RECIPIENT, fund, usdc
from tests.support.evm import await_mined, pay_from_a_contract
from tests.support.faults import FaultyChain
from workers import deposits as deposit_jobs

pytestmark = pytest.mark.chain


@pytest.fixture
def agent(chain_app: Flask) -> Iterator[Agent]:
    """An agent with an empty wallet."""
    with chain_app.app_context():
        yield register(chain_app.test_client())


def ask(agent: Agent, amount: object, currency: str, *, chain: str = "base", **headers: str) -> dict[str, Any]:
    body = {"amount": amount, "currency": currency, "chain": chain}
    answer = agent.post(f"{agent.wallet_url}/fund", body, **headers)
    assert answer.status_code == 200, answer.get_data(as_text=True)
    request: dict[str, Any] = answer.get_json()
    return request


def settle(node: EvmNode) -> int:
    """Mine the confirmations of deposits, and scan for them."""
    name = ChainName(node.name)
    node.mine(CONFIRMATIONS[name] - 1)
    return scanner.scan(name)


def row(agent: Agent, request: dict[str, Any]) -> dict[str, Any]:
    return agent.transaction(request["funding_request_id"])


def status(agent: Agent, *requests: dict[str, Any]) -> list[str]:
    return [row(agent, request)["status"] for request in requests]


def test_a_request_has_the_documented_fields_and_is_listed_in_the_history(agent: Agent) -> None:
    body = ask(agent, "12.50", "usdc", chain="Base")
    request_id, message = body.pop("funding_request_id"), body.pop("message")
    assert identifiers.parse_id(request_id) == request_id
    assert body == {
        "wallet_id": agent.wallet_id, "deposit_address": agent.address, "amount": "12.5", "currency": "USDC",
        "chain": "base", "status": "pending",
    }  # fmt: skip
    for word in ("12.5", "USDC", "base", agent.address):
        assert word in message
    entry = agent.transaction(request_id)
    assert [event["status"] for event in entry.pop("events")] == ["pending"]
    assert entry.pop("created_at")
    assert entry == {
        "id": request_id, "wallet_id": agent.wallet_id, "type": "funding", "kind": None, "chain": "base",
        "from_address": None, "to_address": agent.address, "amount": "12.5", "currency": "USDC", "tx_hash": None,
        "previous_hashes": [], "status": "pending", "error": None, "cost_usd": 0, "gas_fee": None, "explorer_url": None,
        "confirmed_at": None,
    }  # fmt: skip
    assert agent.get(agent.wallet_url).get_json()["transaction_count"] == 1
    assert agent.spent_this_month() == 0


BAD: list[tuple[dict[str, Any], str]] = [
    *[({"amount": amount}, "amount") for amount in ("0", "-1", "1e2", " 1", "", "1.0000001", "NaN", None, True, ["1"])],
    *[({"currency": currency}, "currency") for currency in ("SOL", "DAI", "", 1, None)],
    *[({"chain": chain}, "chain") for chain in ("polygon", "", 1, None)],
]  # fmt: skip


def test_an_invalid_or_missing_field_is_reported_and_nothing_is_recorded(agent: Agent) -> None:
    good = {"amount": "1", "currency": "USDC", "chain": "base"}
    for change, field in BAD:
        answer = agent.post(f"{agent.wallet_url}/fund", {**good, **change})
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), change
        assert field in answer.get_json()["details"]["fields"]
    for field in good:
        answer = agent.post(f"{agent.wallet_url}/fund", {name: good[name] for name in good if name != field})
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
        assert field in answer.get_json()["details"]["fields"]
    assert agent.history() == []


@pytest.mark.parametrize("chain", ["ethereum", "base"])
@pytest.mark.parametrize(("currency", "amount"), [("USDC", 3.25), ("ETH", 0.125)])
def test_a_real_deposit_confirms_the_request_once_it_is_deep_enough(
    chain: str, currency: str, amount: float, agent: Agent, request: pytest.FixtureRequest
) -> None:
    node: EvmNode = request.getfixturevalue(f"{chain}_node")
    asked = ask(agent, str(amount), currency, chain=chain)
    if currency == "ETH":
        tx_hash = node.fund_eth(agent.address, int(amount * 10**18))
    else:
        tx_hash = node.fund_usdc(agent.address, usdc(amount))
    payer = node.rpc("eth_getTransactionByHash", tx_hash)["from"]
    node.mine(CONFIRMATIONS[ChainName(chain)] - 2)
    assert scanner.scan(ChainName(chain)) == 0
    assert status(agent, asked) == ["pending"]
    node.mine(1)
    assert scanner.scan(ChainName(chain)) == 1
    entry = row(agent, asked)
    assert (entry["status"], entry["tx_hash"]) == ("confirmed", tx_hash)
    assert entry["from_address"].lower() == payer.lower()
    assert entry["confirmed_at"]
    assert [event["status"] for event in entry["events"]] == ["pending", "confirmed"]
    assert scanner.scan(ChainName(chain)) == 0
    assert agent.spent_this_month() == 0


def test_deposits_add_up_and_the_last_one_sets_the_hash(agent: Agent, base_node: EvmNode) -> None:
    asked = ask(agent, "10", "USDC")
    base_node.fund_usdc(agent.address, usdc(4))
    settle(base_node)
    base_node.fund_usdc(agent.address, 5_999_999)
    settle(base_node)
    assert status(agent, asked) == ["pending"]
    last = base_node.fund_usdc(agent.address, 1)
    settle(base_node)
    assert (row(agent, asked)["status"], row(agent, asked)["tx_hash"]) == ("confirmed", last)


def test_the_remainder_of_a_deposit_is_allocated_to_the_next_request(agent: Agent, base_node: EvmNode) -> None:
    first, second, third = ask(agent, "5", "USDC"), ask(agent, "3", "USDC"), ask(agent, "2", "USDC")
    base_node.fund_usdc(agent.address, usdc(9))
    assert settle(base_node) == 1
    assert status(agent, first, second, third) == ["confirmed", "confirmed", "pending"]
    base_node.fund_usdc(agent.address, usdc(1))
    settle(base_node)
    assert status(agent, third) == ["confirmed"]


def test_a_remainder_is_not_kept_for_later_requests(agent: Agent, base_node: EvmNode) -> None:
    first = ask(agent, "5", "USDC")
    base_node.fund_usdc(agent.address, usdc(9))
    settle(base_node)
    second = ask(agent, "4", "USDC")
    settle(base_node)
    assert status(agent, first, second) == ["confirmed", "pending"]


def test_a_deposit_before_the_request_does_not_count_even_when_it_is_found_after_it(
    agent: Agent, base_node: EvmNode
) -> None:
    fund(base_node, agent.address, eth=0.5, dollars=5)
    early = [ask(agent, "5", "USDC"), ask(agent, "0.5", "ETH")]
    assert settle(base_node) == 2
    assert status(agent, *early) == ["pending", "pending"]
    # Pending while the second request is made: it counts for the first one only.
    base_node.fund_usdc(agent.address, usdc(10))
    late = ask(agent, "5", "USDC")
    assert settle(base_node) == 1
    assert status(agent, *early, late) == ["confirmed", "pending", "pending"]


def test_the_wrong_token_or_chain_fulfils_nothing(agent: Agent, base_node: EvmNode, ethereum_node: EvmNode) -> None:
    ether, dollars = ask(agent, "0.25", "ETH"), ask(agent, "1", "USDC")
    fund(ethereum_node, agent.address, eth=1, dollars=50)
    settle(ethereum_node)
    settle(base_node)
    assert status(agent, ether, dollars) == ["pending", "pending"]
    fund(base_node, agent.address, eth=0, dollars=50)
    settle(base_node)
    assert status(agent, ether, dollars) == ["pending", "confirmed"]


def test_a_deposit_to_another_wallet_fulfils_nothing(agent: Agent, base_node: EvmNode) -> None:
    other = register(agent.client)
    mine, theirs = ask(agent, "1", "USDC"), ask(other, "1", "USDC")
    base_node.fund_usdc(other.address, usdc(5))
    settle(base_node)
    assert status(agent, mine) == ["pending"]
    assert status(other, theirs) == ["confirmed"]


def test_an_internal_transfer_of_a_contract_counts_and_has_no_hash(agent: Agent, base_node: EvmNode) -> None:
    asked = ask(agent, "0.000000003", "ETH")
    await_mined(base_node, pay_from_a_contract(base_node, {agent.address: 3 * 10**9}))
    assert settle(base_node) == 1
    entry = row(agent, asked)
    assert (entry["status"], entry["tx_hash"], entry["from_address"]) == ("confirmed", None, None)


def test_own_movements_are_not_deposits_and_do_not_reduce_one(agent: Agent, base_node: EvmNode) -> None:
    fund(base_node, agent.address, eth=1, dollars=50)
    agent.unlimited()
    ether, dollars = ask(agent, "0.5", "ETH"), ask(agent, "5", "USDC")
    for amount, currency, to in (
        ("0.1", "ETH", agent.address),
        ("20", "USDC", agent.address),
        ("0.2", "ETH", RECIPIENT),
    ):
        assert agent.move(amount, currency, to=to).get_json()["status"] == "confirmed"
    assert settle(base_node) == 2  # what the wallet held before
    assert status(agent, ether, dollars) == ["pending", "pending"]
    # Fees and amounts sent between two scans do not reduce the deposit.
    base_node.fund_eth(agent.address, 5 * 10**17)
    assert agent.move("0.1", "ETH").get_json()["status"] == "confirmed"
    assert agent.move("1", "USDC").get_json()["status"] == "confirmed"
    assert settle(base_node) == 1
    assert status(agent, ether, dollars) == ["confirmed", "pending"]


def test_a_wallet_has_at_most_twenty_open_requests(agent: Agent, base_node: EvmNode) -> None:
    asked = [ask(agent, "1", "USDC") for _ in range(19)] + [ask(agent, "1", "ETH", chain="ethereum")]
    answer = agent.post(f"{agent.wallet_url}/fund", {"amount": "1", "currency": "USDC", "chain": "base"})
    assert (answer.status_code, answer.get_json()["code"]) == (409, "LIMIT_REACHED")
    assert "20" in answer.get_json()["error"]
    assert agent.get(agent.wallet_url).get_json()["transaction_count"] == 20
    base_node.fund_usdc(agent.address, usdc(1))
    settle(base_node)
    assert status(agent, asked[0], asked[1]) == ["confirmed", "pending"]
    ask(agent, "1", "USDC")


def test_an_unpaid_request_expires_and_later_deposits_go_to_others(agent: Agent, base_node: EvmNode) -> None:
    old = ask(agent, "5", "USDC")
    made = clock.now()
    with time_machine.travel(made + timedelta(days=6, hours=23), tick=True):
        assert funding.fail_expired(clock.now()) == 0
        young = ask(agent, "5", "USDC")
    with time_machine.travel(made + timedelta(days=7, seconds=5), tick=True):
        assert funding.fail_expired(clock.now()) == 1
        assert funding.fail_expired(clock.now()) == 0
    entry = row(agent, old)
    assert (entry["status"], entry["error"]) == ("failed", "expired")
    assert [event["reason"] for event in entry["events"]] == [None, "expired"]
    base_node.fund_usdc(agent.address, usdc(5))
    settle(base_node)
    assert status(agent, old, young) == ["failed", "confirmed"]


@pytest.mark.parametrize("verb", ["head", "scan_state"])
def test_no_request_is_created_on_an_unreadable_chain(
    verb: str, build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    chain, queue = FaultyChain(chains[ChainName.BASE]), RecordingQueue()
    app = build_app(sqlite_url, chains={**chains, ChainName.BASE: chain}, queue=queue, faucet=HttpFaucet("http://x"))
    with app.app_context():
        agent = register(app.test_client())
        chain.raising(verb, "before", Unreachable("chain_unreachable"))
        wanted = {"amount": "1", "currency": "USDC", "chain": "base"}
        answer = agent.post(f"{agent.wallet_url}/fund", wanted, Idempotency_Key="k")
        body = answer.get_json()
        assert (answer.status_code, body["code"], body["details"]) == (502, "BALANCE_FETCH_ERROR", {"chains": ["base"]})
        assert agent.history() == []
        assert queue.put_jobs == []
        assert agent.post(f"{agent.wallet_url}/fund", wanted, Idempotency_Key="k").status_code == 200


class WitnessQueue(RecordingQueue):
    """Records whether the request was visible to another connection when its job was enqueued."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.path = url.removeprefix("sqlite:///")
        self.visible: list[bool] = []

    def enqueue(self, job: JobName, *arguments: str) -> bool:
        connection = sqlite3.connect(self.path)
        hexadecimal = arguments[0].replace("-", "")
        found = connection.execute("SELECT 1 FROM transactions WHERE id = ?", (hexadecimal,)).fetchone()
        connection.close()
        self.visible.append(found is not None)
        return super().enqueue(job, *arguments)


@pytest.fixture
def faucet_url(base_node: EvmNode, tmp_path: Path) -> Iterator[str]:
    book = PaymentLedger(tmp_path / "faucet.sqlite")
    server = FaucetServer(Faucet(book, {"base": EvmPayer(base_node.url, base_node.deployment)}))
    server.start()
    yield server.url
    server.stop()
    book.close()


def test_the_faucet_pays_each_request_once_however_often_it_is_asked(
    build_app: Callable[..., Flask],
    sqlite_url: str,
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
    faucet_url: str,
) -> None:
    queue = WitnessQueue(sqlite_url)
    app = build_app(sqlite_url, chains=chains, queue=queue, faucet=HttpFaucet(faucet_url))
    with app.app_context():
        agent = register(app.test_client())
        asked = [ask(agent, "2.5", "USDC"), ask(agent, "0.5", "ETH")]
        ids = [each["funding_request_id"] for each in asked]
        assert queue.put_jobs == [(JobName.PAY_FROM_FAUCET, (request_id,)) for request_id in ids]
        assert queue.visible == [True, True]
        for _ in range(3):
            for request_id in ids:
                deposit_jobs.pay_from_faucet(request_id)
        settle(base_node)
        assert status(agent, *asked) == ["confirmed", "confirmed"]
        held = app_state().ports.chains[ChainName.BASE].balances(agent.address)
        assert (held.of(USDC).units, held.of(ETH).units) == (2_500_000, 5 * 10**17)


def test_a_request_with_a_lost_faucet_job_takes_no_deposit_of_a_later_one(
    each_database_url: str,
    build_app: Callable[..., Flask],
    chains: dict[ChainName, EvmChain],
    base_node: EvmNode,
    faucet_url: str,
) -> None:
    app = build_app(each_database_url, chains=chains, queue=RecordingQueue(), faucet=HttpFaucet(faucet_url))
    with app.app_context():
        agent = register(app.test_client())
        requests = [ask(agent, "1.5", "USDC") for _ in range(2)]
        ask(agent, "1.5", "ETH")
        deposit_jobs.pay_from_faucet(requests[1]["funding_request_id"])
        settle(base_node)
        assert status(agent, *requests) == ["confirmed", "confirmed"]


class HalfAway:
    """A faucet that cannot pay on Ethereum at the moment."""

    def __init__(self) -> None:
        self.paid: list[str] = []

    def pay(self, request_id: str, *, chain: ChainName, **_payment: Any) -> None:
        if chain is ChainName.ETHEREUM:
            raise Unreachable("no_answer")
        self.paid.append(request_id)


def test_a_chain_that_the_faucet_cannot_pay_on_delays_no_request_on_another(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    faucet = HalfAway()
    app = build_app(sqlite_url, chains=chains, queue=RecordingQueue(), faucet=faucet)
    with app.app_context():
        agent = register(app.test_client())
        ask(agent, "1", "ETH", chain="ethereum")
        other_token, wanted = ask(agent, "1", "ETH"), ask(agent, "1", "USDC")
        deposit_jobs.pay_from_faucet(wanted["funding_request_id"])
        assert faucet.paid == [wanted["funding_request_id"]]
        deposit_jobs.pay_from_faucet(other_token["funding_request_id"])
        assert faucet.paid == [wanted["funding_request_id"], other_token["funding_request_id"]]


def test_a_refused_request_does_not_call_the_faucet(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
) -> None:
    queue = RecordingQueue()
    app = build_app(sqlite_url, chains=chains, queue=queue, faucet=HttpFaucet("http://127.0.0.1:1"))
    with app.app_context():
        agent = register(app.test_client())
        for _ in range(20):
            ask(agent, "1", "USDC")
        asked = len(queue.put_jobs)
        assert (
            agent.post(f"{agent.wallet_url}/fund", {"amount": "1", "currency": "USDC", "chain": "base"}).status_code
            == 409
        )
        assert (
            agent.post(f"{agent.wallet_url}/fund", {"amount": "0", "currency": "USDC", "chain": "base"}).status_code
            == 400
        )
        assert len(queue.put_jobs) == asked == 20


def test_without_a_working_faucet_a_request_stays_open(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    for faucet in (None, HttpFaucet("http://127.0.0.1:1")):
        queue = RecordingQueue()
        queue.away = True
        app = build_app(sqlite_url, chains=chains, queue=queue, faucet=faucet)
        with app.app_context():
            agent = register(app.test_client())
            asked = ask(agent, "1", "USDC")
            deposit_jobs.pay_from_faucet(asked["funding_request_id"])
            deposit_jobs.pay_from_faucet(identifiers.new_id())
            settle(base_node)
            assert status(agent, asked) == ["pending"]
            base_node.fund_usdc(agent.address, usdc(1))
            settle(base_node)
            assert status(agent, asked) == ["confirmed"]
