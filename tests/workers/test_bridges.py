"""Pending bridges: late, lost, refused, expired or reversed; each ends once and correctly."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from eth_account import Account
from flask import Flask
from sqlalchemy import update

from app.adapters.bridges.cctp import messages
from app.adapters.bridges.cctp.evm_chain import MintSearch
from app.adapters.bridges.cctp.messages import CctpMessage
from app.adapters.bridges.deployments import DEPLOYMENTS
from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ETH, USDC, ChainName
from app.core.money import parse_amount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.bridges import ArrivalNotFound, BridgeArrival
from app.spending import accounts as spending_accounts
from app.wallets.bridges import advance as bridge_steps
from app.wallets.bridges import state as bridge_states
from app.wallets.bridges.state import BridgeStage
from app.wallets.core.models import Bridge
from app.wallets.deposits import scanner
from sandbox.bridges import BridgeServer, Derivation
from sandbox.bridges.attester import AttesterFaults
from sandbox.bridges.server import BridgeFaults
from sandbox.evm import EvmNode
from sandbox.evm.abi import call_data
from tests.support import backups
from tests.support.agents import Agent, register
from tests.support.applications import change_ports
from tests.support.bridges import Workers, bridge, legs_of, running_bridges
from tests.support.chains import ether, evm_chain, fund, running_node, usdc
from tests.support.evm import Calls, await_mined, chain_at, proxy, refuse
from tests.support.faults import FaultyChain
from tests.support.key_services import move_keys

pytestmark = pytest.mark.chain
HOUR = 3600


@pytest.fixture(scope="session")
def services(ethereum_node: EvmNode, base_node: EvmNode) -> Iterator[BridgeServer]:
    with running_bridges(ethereum=ethereum_node.url, base=base_node.url) as server:
        yield server


@pytest.fixture(autouse=True)
def _reset_services(services: BridgeServer) -> Iterator[None]:
    # The wallets of most of these tests mint themselves.
    services.attester.faults = AttesterFaults(offers_forwarding=False)
    yield
    services.faults = BridgeFaults()
    services.attester.faults = AttesterFaults()
    services.relay.refunds = services.relay.is_stalled = False


def app_on(
    build_app: Callable[..., Flask], url: str, chains: dict[ChainName, EvmChain], services: BridgeServer
) -> Flask:
    settings = {
        "cctp_attestation_url": services.url, "relay_base_url": services.url,
        "lifi_base_url": services.url + "/v1",
    }  # fmt: skip
    return build_app(url, chains=chains, settings=settings)


@pytest.fixture
def agent(
    database_url: str,
    build_app: Callable[..., Flask],
    chains: dict[ChainName, EvmChain],
    services: BridgeServer,
    ethereum_node: EvmNode,
    base_node: EvmNode,
) -> Iterator[Agent]:
    """An agent with 1 ETH on both chains, and 100 USDC on Base."""
    app = app_on(build_app, database_url, chains, services)
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=100)
        fund(ethereum_node, made.address, eth=1)
        yield made


@pytest.fixture
def workers(agent: Agent) -> Workers:
    return Workers(agent, ChainName.BASE, ChainName.ETHEREUM)


def dollars(chains: dict[ChainName, EvmChain], agent: Agent, chain: ChainName) -> int:
    return chains[chain].balances(agent.address).of(USDC).units


def state_of(agent: Agent, bridge_id: str) -> tuple[str, str | None]:
    row = agent.transaction(bridge_id)
    return row["status"], row["error"]


def says(status: str, tx_hash: str) -> Callable[[str, Any], Any]:
    """Return a change of what Relay answers about every order."""
    return lambda path, document: (
        {**document, "status": status, "txHashes": [tx_hash]} if path == "/intents/status/v3" else document
    )


def burned(agent: Agent, amount: str = "50", source: str = "base", destination: str = "ethereum") -> str:
    """Send a bridge on its way, and return its id."""
    body = bridge(agent, source, destination, amount).get_json()
    assert body.get("status") == "pending", body
    made: str = body["transaction_id"]
    return made


def test_an_attestation_an_hour_late_is_waited_for_and_minted(
    agent: Agent, workers: Workers, services: BridgeServer, chains: dict[ChainName, EvmChain]
) -> None:
    services.attester.faults.withholds = True
    bridge_id = burned(agent)
    for _ in range(6):
        workers.look(seconds=HOUR // 6)
        row = agent.transaction(bridge_id)
        assert (row["status"], row["error"]) == ("pending", "attestation_pending")
    assert legs_of(row) == {
        "approve": "confirmed", "source": "confirmed", "attestation": "pending", "destination": "pending",
    }  # fmt: skip
    services.attester.faults.withholds = False
    row = workers.finish(bridge_id)
    assert (row["status"], row["error"]) == ("confirmed", None)
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units


def test_an_unavailable_attestation_service_only_delays_a_bridge(
    agent: Agent, workers: Workers, services: BridgeServer
) -> None:
    bridge_id = burned(agent)
    services.faults.status = 503
    workers.look(3)
    assert state_of(agent, bridge_id) == ("pending", "attestation_service")
    services.faults.status = None
    assert workers.finish(bridge_id)["status"] == "confirmed"


@pytest.mark.parametrize(("forwarding", "looks"), [("fails", 3), ("sleeps", 8)])
def test_the_wallet_mints_if_the_forwarder_does_not(
    forwarding: str,
    looks: int,
    agent: Agent,
    workers: Workers,
    services: BridgeServer,
    base_node: EvmNode,
    ethereum_node: EvmNode,
    chains: dict[ChainName, EvmChain],
) -> None:
    fund(ethereum_node, agent.address, eth=0, dollars=100)
    services.attester.faults = AttesterFaults(forwarding=forwarding)
    bridge_id = burned(agent, source="ethereum", destination="base")
    assert "forwarded" in bridge(agent, "ethereum", "base", "5", dry_run=True).get_json()["route"]
    if forwarding == "sleeps":
        workers.look(2)
        assert agent.transaction(bridge_id)["error"] == "forwarding_pending"
    row = workers.finish(bridge_id, looks=looks)
    assert row["status"] == "confirmed", row
    minted = base_node.rpc("eth_getTransactionByHash", row["legs"][-1]["tx_hash"])
    assert minted["from"] == agent.address.lower()
    received = parse_amount(row["received_amount"], USDC).units
    assert dollars(chains, agent, ChainName.BASE) == usdc(100) + received


def test_a_mint_waits_for_a_key_service_that_is_out(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode
) -> None:
    fund(ethereum_node, agent.address, eth=0, dollars=100)
    services.attester.faults = AttesterFaults(forwarding="fails")
    bridge_id = burned(agent, source="ethereum", destination="base")
    service, forget = move_keys(agent.client.application)
    service.is_out = True
    workers.look(3)
    assert state_of(agent, bridge_id) == ("pending", "key_service_unreachable")
    service.is_out = False
    forget()
    assert workers.finish(bridge_id, looks=3)["status"] == "confirmed"


def third_party_mints(node: EvmNode, services: BridgeServer, tx_hash: str) -> str:
    """Have another account submit the mint of a burn on Base."""
    found = services.attester.messages(6, tx_hash)
    assert found is not None
    (entry,) = found["messages"]
    message, attestation = (bytes.fromhex(entry[name][2:]) for name in ("message", "attestation"))
    data = call_data("receiveMessage(bytes,bytes)", message, attestation)
    other_account = node.rpc("eth_accounts")[3]
    sent: str = node.rpc(
        "eth_sendTransaction",
        {"from": other_account, "to": DEPLOYMENTS["sandbox"].transmitter, "data": data, "gas": hex(500_000)},
    )
    await_mined(node, sent)
    return sent


def test_a_mint_by_another_party_completes_the_bridge_and_nothing_is_minted_twice(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode, chains: dict[ChainName, EvmChain]
) -> None:
    bridge_id = burned(agent)
    tx_hash = third_party_mints(ethereum_node, services, agent.transaction(bridge_id)["tx_hash"])
    row = workers.finish(bridge_id)
    assert (row["status"], row["legs"][-1]["tx_hash"]) == ("confirmed", tx_hash)
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units
    assert ethereum_node.rpc("eth_getTransactionCount", agent.address, "latest") == "0x0"


@pytest.mark.parametrize(
    "database_url", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)
def test_concurrent_workers_mint_once(
    agent: Agent, workers: Workers, chains: dict[ChainName, EvmChain], ethereum_node: EvmNode
) -> None:
    bridge_id = burned(agent)
    app = agent.client.application

    def look() -> None:
        with app.app_context():
            bridge_steps.advance(bridge_id)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(look) for _ in range(4)]:
            done.result()
    row = workers.finish(bridge_id)
    assert row["status"] == "confirmed", row
    assert ethereum_node.rpc("eth_getTransactionCount", agent.address, "latest") == "0x1"
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units


def test_an_attestation_that_has_expired_is_renewed(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode, chains: dict[ChainName, EvmChain]
) -> None:
    head = int(ethereum_node.rpc("eth_blockNumber"), 16)
    services.attester.faults.expires_at = head
    bridge_id = burned(agent)
    workers.look()
    row = agent.transaction(bridge_id)
    assert (row["status"], row["error"]) == ("pending", "attestation_expired")
    assert legs_of(row)["attestation"] == "pending"
    assert len(services.attester.renewed) >= 1
    services.attester.faults.expires_at = None
    row = workers.finish(bridge_id)
    assert row["status"] == "confirmed"
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units


def test_a_wallet_without_gas_after_the_burn_retries_and_reports_what_is_missing(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode, chains: dict[ChainName, EvmChain]
) -> None:
    services.attester.faults.withholds = True
    bridge_id = burned(agent)
    ethereum_node.rpc("anvil_setBalance", agent.address, "0x0")
    services.attester.faults.withholds = False
    workers.look(6)
    row = agent.transaction(bridge_id)
    assert row["status"] == "pending"
    assert row["error"].startswith("insufficient_gas: ")
    assert row["error"].endswith(" ETH missing")
    fund(ethereum_node, agent.address, eth=1)
    row = workers.finish(bridge_id)
    assert (row["status"], row["error"]) == ("confirmed", None)
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units


def test_a_message_that_differs_from_the_burn_is_never_minted(
    agent: Agent, workers: Workers, services: BridgeServer, chains: dict[ChainName, EvmChain]
) -> None:
    thief = Account.create().address
    services.attester.faults.message_change = {148 + 36: bytes(12) + bytes.fromhex(thief[2:])}
    bridge_id = burned(agent)
    workers.look(4)
    assert state_of(agent, bridge_id) == ("pending", "attestation_mismatch")
    assert chains[ChainName.ETHEREUM].balances(thief).of(USDC).units == 0


def attested_nonce(services: BridgeServer, tx_hash: str) -> str:
    said = services.attester.messages(6, tx_hash)
    assert said is not None
    nonce: str = said["messages"][0]["eventNonce"]
    return nonce


def test_a_nonce_used_by_another_mint_is_not_an_arrival(
    agent: Agent, workers: Workers, services: BridgeServer, chains: dict[ChainName, EvmChain]
) -> None:
    first = burned(agent, "20")
    assert workers.finish(first)["status"] == "confirmed"
    nonce = attested_nonce(services, agent.transaction(first)["tx_hash"])
    before = dollars(chains, agent, ChainName.ETHEREUM)
    services.attester.faults.message_change = {12: bytes.fromhex(nonce[2:])}
    second = burned(agent, "30")
    workers.look(3)
    row = agent.transaction(second)
    assert (row["status"], row["error"]) == ("pending", "mint_not_seen")
    assert dollars(chains, agent, ChainName.ETHEREUM) == before
    services.attester.faults.message_change = {}
    services.attester.renew(attested_nonce(services, row["tx_hash"]))
    row = workers.finish(second)
    assert row["status"] == "confirmed"
    received = parse_amount(row["received_amount"], USDC).units
    assert dollars(chains, agent, ChainName.ETHEREUM) == before + received


def few_logs(calls: Calls, replies: Calls) -> Calls:
    """Answer as a node does that gives the logs of ten blocks at most."""
    wide = {
        call["id"]
        for call in calls
        if call["method"] == "eth_getLogs"
        and int(call["params"][0]["toBlock"], 16) - int(call["params"][0]["fromBlock"], 16) >= 10
    }
    error = {"code": -32600, "message": "up to a 10 block range"}
    return [
        {"jsonrpc": "2.0", "id": reply["id"], "error": error} if reply["id"] in wide else reply for reply in replies
    ]


def test_a_mint_by_another_party_is_found_or_awaited_with_limited_nodes(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode
) -> None:
    bridge_id = burned(agent)
    since = evm_chain(ethereum_node).head().number
    ethereum_node.mine(15)
    tx_hash = agent.transaction(bridge_id)["tx_hash"]
    minted = third_party_mints(ethereum_node, services, tx_hash)
    ethereum_node.mine(15)
    said = services.attester.messages(6, tx_hash)
    assert said is not None
    message = messages.read(bytes.fromhex(said["messages"][0]["message"][2:]))
    other = replace(message, burn=replace(message.burn, units=message.burn.units + 1))

    def found(looked_for: CctpMessage) -> BridgeArrival | ArrivalNotFound:
        search = MintSearch(DEPLOYMENTS["sandbox"].transmitter, looked_for, since)
        return search.run(chain_at(ethereum_node, limited.url).rpc, hint=None)

    with proxy(ethereum_node.url) as limited:
        limited.after = few_logs
        arrival = found(message)
        assert isinstance(arrival, BridgeArrival)
        assert arrival.tx_hash == minted
        assert found(other) is ArrivalNotFound.NOT_FOUND
        # Without logs, the message that used the nonce is unknown.
        limited.after = refuse("eth_getLogs", "query returned more than 10000 results")
        assert found(message) is ArrivalNotFound.UNREADABLE
        limited.after = lambda calls, replies: few_logs(calls, refuse("eth_call", "missing trie node")(calls, replies))
        assert found(message) is ArrivalNotFound.UNREADABLE
    assert workers.finish(bridge_id)["status"] == "confirmed"


def test_an_unexpected_error_delays_a_bridge_and_is_reported(agent: Agent, workers: Workers) -> None:
    bridge_id = burned(agent)
    with unit_of_work() as session:
        session.execute(update(Bridge).where(Bridge.id == bridge_id).values(terms={}))
    workers.look(2)
    assert state_of(agent, bridge_id) == ("pending", "internal_error")


def test_the_arrival_of_a_bridge_fulfils_no_funding_request(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode, base_node: EvmNode
) -> None:
    asked = agent.post(f"{agent.wallet_url}/fund", {"chain": "ethereum", "currency": "USDC", "amount": "10"}).get_json()
    ether_asked = agent.post(
        f"{agent.wallet_url}/fund", {"chain": "base", "currency": "ETH", "amount": "0.1"}
    ).get_json()
    bridge_id = burned(agent)
    ether_id = bridge(agent, "ethereum", "base", "0.25", "ETH").get_json()["transaction_id"]
    third_party_mints(ethereum_node, services, agent.transaction(bridge_id)["tx_hash"])
    Derivation(ethereum_node, base_node).derive()

    def look_for_deposits() -> None:
        for node, name in ((ethereum_node, ChainName.ETHEREUM), (base_node, ChainName.BASE)):
            node.mine(6)
            scanner.scan(name)

    look_for_deposits()
    for each in (bridge_id, ether_id):
        assert workers.finish(each)["status"] == "confirmed"
    look_for_deposits()
    ids = (asked["funding_request_id"], ether_asked["funding_request_id"])
    assert [agent.transaction(each)["status"] for each in ids] == ["pending", "pending"]
    fund(ethereum_node, agent.address, eth=0, dollars=10)
    fund(base_node, agent.address, eth=0.1)
    look_for_deposits()
    assert [agent.transaction(each)["status"] for each in ids] == ["confirmed", "confirmed"]


def ether_out(agent: Agent, amount: str = "0.25") -> str:
    body = bridge(agent, "base", "ethereum", amount, "ETH").get_json()
    assert body.get("status") == "pending", body
    made: str = body["transaction_id"]
    return made


def test_a_refunded_order_fails_once_the_refund_is_on_the_chain(
    agent: Agent, workers: Workers, services: BridgeServer, chains: dict[ChainName, EvmChain]
) -> None:
    services.relay.refunds = True
    bridge_id = ether_out(agent)
    assert agent.spent_this_month() > 0
    row = workers.finish(bridge_id)
    assert (row["status"], row["error"]) == ("failed", "refunded")
    assert 0.24 < float(row["refunded_amount"]) <= 0.25
    assert agent.spent_this_month() == 0
    assert ether(0.99) < chains[ChainName.BASE].balances(agent.address).of(ETH).units < ether(1)


@pytest.mark.parametrize(
    "amount", [pytest.param("0.25", id="dear"), pytest.param("0.005", id="worth-less-than-what-may-be-kept")]
)
def test_a_partial_payment_is_not_a_refund_until_the_operator_writes_off_the_rest(
    agent: Agent, workers: Workers, services: BridgeServer, base_node: EvmNode, amount: str
) -> None:
    services.relay.is_stalled = True
    bridge_id = ether_out(agent, amount)
    counted = agent.spent_this_month()
    dust = base_node.fund_eth(agent.address, ether(0.001))
    await_mined(base_node, dust)
    services.faults.change = says("refund", dust)

    def close(*options: str) -> int:
        app = agent.client.application
        return app.test_cli_runner().invoke(args=["bridges", "write-off", bridge_id, *options]).exit_code

    workers.look(3)
    row = agent.transaction(bridge_id)
    assert (row["status"], row["error"]) == ("pending", "refund_short: 0.001 ETH came back")
    assert (agent.spent_this_month(), row["refunded_amount"]) == (counted, None)
    # Not before it is final, and not unless it is said.
    assert (close(), close("--accept-partial-refund")) == (1, 1)
    base_node.mine(70)
    assert (close(), close("--accept-partial-refund")) == (1, 0)
    workers.look(2)
    row = agent.transaction(bridge_id)
    assert (row["status"], row["error"], row["refunded_amount"]) == ("failed", "written_off", "0.001")
    assert agent.spent_this_month() == counted


def test_one_refund_does_not_count_for_two_bridges(agent: Agent, workers: Workers, services: BridgeServer) -> None:
    services.relay.refunds = True
    first = ether_out(agent)
    assert workers.finish(first)["error"] == "refunded"
    with read_only_unit() as session:
        refund = session.get_one(Bridge, first).refund_hash
    services.relay.refunds, services.relay.is_stalled = False, True
    services.faults.change = says("refund", refund)
    second = ether_out(agent)
    workers.look(3)
    assert state_of(agent, second) == ("pending", "refund_not_seen")


def test_a_refund_fulfils_no_funding_request(
    agent: Agent, workers: Workers, services: BridgeServer, base_node: EvmNode
) -> None:
    asked = agent.post(f"{agent.wallet_url}/fund", {"amount": "0.2", "currency": "ETH", "chain": "base"})
    request_id = asked.get_json()["funding_request_id"]
    services.relay.refunds = True
    bridge_id = ether_out(agent)
    workers.look()
    # The refund is on the chain, but no worker has processed it yet.
    base_node.mine(9)
    scanner.scan(ChainName.BASE)
    assert agent.transaction(request_id)["status"] == "pending"
    assert workers.finish(bridge_id)["error"] == "refunded"
    base_node.mine(9)
    scanner.scan(ChainName.BASE)
    assert agent.transaction(request_id)["status"] == "pending"
    base_node.fund_eth(agent.address, ether(0.2))
    base_node.mine(9)
    scanner.scan(ChainName.BASE)
    assert agent.transaction(request_id)["status"] == "confirmed"


def test_a_payment_before_an_order_is_neither_its_arrival_nor_its_refund(
    agent: Agent, workers: Workers, services: BridgeServer, base_node: EvmNode, ethereum_node: EvmNode
) -> None:
    services.relay.is_stalled = True
    older = {
        "success": ethereum_node.fund_eth(agent.address, ether(0.25)),
        "refund": base_node.fund_eth(agent.address, ether(0.25)),
    }
    for node in (base_node, ethereum_node):
        node.mine(9)
    bridge_id = ether_out(agent)
    for status, note in (("success", "payment_not_seen"), ("refund", "refund_not_seen")):
        services.faults.change = says(status, older[status])
        workers.look(3)
        assert state_of(agent, bridge_id) == ("pending", note)


def test_an_order_is_paid_only_by_evidence_on_the_chain(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode
) -> None:
    services.relay.is_stalled = True
    bridge_id = ether_out(agent)
    elsewhere = ethereum_node.fund_eth("0x00000000000000000000000000000000C0FFEE77", ether(0.25))

    services.faults.change = says("success", elsewhere)
    workers.look(3)
    assert state_of(agent, bridge_id) == ("pending", "payment_not_seen")
    services.faults.change, services.relay.is_stalled = None, False
    row = workers.finish(bridge_id)
    assert row["status"] == "confirmed"
    # Nor does one payment stand for two orders.
    services.faults.change, services.relay.is_stalled = says("success", row["legs"][-1]["tx_hash"]), True
    second = ether_out(agent)
    workers.look(3)
    assert state_of(agent, second) == ("pending", "payment_not_seen")


def test_a_bridge_paid_to_another_recipient_can_be_written_off_once_that_is_final(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode
) -> None:
    services.relay.is_stalled = True
    bridge_id = ether_out(agent)
    elsewhere = ethereum_node.fund_eth("0x00000000000000000000000000000000C0FFEE77", ether(0.25))
    await_mined(ethereum_node, elsewhere)

    def close() -> Result:
        app = agent.client.application
        return app.test_cli_runner().invoke(args=["bridges", "write-off", bridge_id])

    workers.look(2)
    # Its service is silent: it may still pay.
    assert close().exit_code == 1
    services.faults.change = says("success", elsewhere)
    workers.look(2)
    assert agent.transaction(bridge_id)["error"] == "payment_not_seen"
    counted = agent.spent_this_month()
    ethereum_node.mine(70)
    closed = close()
    assert closed.exit_code == 0, closed.output
    assert state_of(agent, bridge_id) == ("failed", "written_off")
    assert agent.spent_this_month() == counted > 0
    workers.look(2)
    assert agent.transaction(bridge_id)["status"] == "failed"
    assert close().exit_code == 1


def test_a_write_off_during_a_worker_s_check_stands(
    agent: Agent, workers: Workers, services: BridgeServer, ethereum_node: EvmNode
) -> None:
    services.relay.is_stalled = True
    bridge_id = ether_out(agent)
    elsewhere = ethereum_node.fund_eth("0x00000000000000000000000000000000C0FFEE77", ether(0.25))
    await_mined(ethereum_node, elsewhere)
    ethereum_node.mine(70)
    closed: list[int] = []

    def change(path: str, document: Any) -> Any:
        if path != "/intents/status/v3":
            return document
        if not closed:
            # The pass has the bridge in hand, and asks its service.
            closed.append(-1)
            done = agent.client.application.test_cli_runner().invoke(args=["bridges", "write-off", bridge_id])
            closed.append(done.exit_code)
        return {**document, "status": "success", "txHashes": [elsewhere]}

    services.faults.change = change
    workers.look(3)
    assert closed == [-1, 0]
    # A pass that had listed it before comes to it only now.
    bridge_steps.advance(bridge_id)
    assert state_of(agent, bridge_id) == ("failed", "written_off")
    with read_only_unit() as session:
        assert session.get_one(Bridge, bridge_id).next_step_at is None


def test_a_late_worker_does_not_end_the_checks_of_an_arrival_in_another_block(
    agent: Agent, workers: Workers, chains: dict[ChainName, EvmChain], ethereum_node: EvmNode
) -> None:
    bridge_id = burned(agent)
    assert workers.finish(bridge_id)["status"] == "confirmed"
    ethereum_node.mine(80)
    late = FaultyChain(chains[ChainName.ETHEREUM])
    change_ports(agent.client.application, chains={**chains, ChainName.ETHEREUM: late})

    def arrive_elsewhere() -> None:
        # A concurrent worker, with a node that has the mint in another block.
        with unit_of_work() as session:
            found = session.get_one(Bridge, bridge_id)
            units, tx_hash, number = found.received_units, found.arrival_hash, found.arrival_block or 0
            spending_accounts.lock_account(session, found.wallet_id)
            bridge_states.move(session, found, BridgeStage.CROSSING, reason="reorganised", next_step_at=clock.now())
        with unit_of_work() as session:
            found = session.get_one(Bridge, bridge_id)
            spending_accounts.lock_account(session, found.wallet_id)
            bridge_states.move(
                session, found, BridgeStage.ARRIVED, reason=None, next_step_at=clock.now(), received_units=units,
                arrival_hash=tx_hash, arrival_block=number + 1, arrival_block_hash="0x" + "ab" * 32,
            )  # fmt: skip

    late.fail("orphaned_blocks", "after", arrive_elsewhere)
    assert bridge_steps.advance(bridge_id)
    with read_only_unit() as session:
        assert session.get_one(Bridge, bridge_id).next_step_at is not None
    assert bridge_steps.advance(bridge_id)
    assert agent.transaction(bridge_id)["status"] == "pending"
    assert workers.finish(bridge_id)["status"] == "confirmed"


@pytest.fixture
def own_nodes() -> Iterator[dict[ChainName, EvmNode]]:
    """Nodes of this test's own, for ruling their mining."""
    with running_node(ChainName.BASE) as base, running_node(ChainName.ETHEREUM) as ethereum:
        yield {ChainName.BASE: base, ChainName.ETHEREUM: ethereum}


@pytest.fixture
def own(
    build_app: Callable[..., Flask], sqlite_url: str, own_nodes: dict[ChainName, EvmNode]
) -> Iterator[tuple[Agent, Workers, BridgeServer, dict[ChainName, EvmChain]]]:
    chains = {name: evm_chain(node) for name, node in own_nodes.items()}
    with running_bridges(**{name.value: node.url for name, node in own_nodes.items()}) as services:
        services.attester.faults.offers_forwarding = False
        app = app_on(build_app, sqlite_url, chains, services)
        with app.app_context():
            agent = register(app.test_client())
            fund(own_nodes[ChainName.BASE], agent.address, eth=1, dollars=100)
            fund(own_nodes[ChainName.ETHEREUM], agent.address, eth=1)
            yield agent, Workers(agent, *chains), services, chains


def test_a_reverted_burn_fails_and_releases_its_hold(
    own: tuple[Agent, Workers, BridgeServer, dict[ChainName, EvmChain]], own_nodes: dict[ChainName, EvmNode]
) -> None:
    agent, workers, _services, chains = own
    base = own_nodes[ChainName.BASE]
    base.set_automine(on=False)
    bridge_id = bridge(agent, "base", "ethereum", "50", Prefer="respond-async").get_json()["transaction_id"]
    owner = base.rpc("eth_accounts")[0]
    pause = {"from": owner, "to": base.deployment.usdc, "data": call_data("pause()"), "gasPrice": hex(10**12)}
    base.rpc("eth_sendTransaction", pause)
    base.set_automine(on=True)
    base.mine(1)
    row = workers.finish(bridge_id)
    assert (row["status"], row["error"]) == ("failed", "reverted"), row
    assert legs_of(row)["source"] == "failed"
    assert agent.spent_this_month() == 0
    assert dollars(chains, agent, ChainName.BASE) == usdc(100)
    assert "destination" not in legs_of(row)


def test_a_burn_in_an_orphaned_block_is_rebroadcast_and_minted_once(
    own: tuple[Agent, Workers, BridgeServer, dict[ChainName, EvmChain]], own_nodes: dict[ChainName, EvmNode]
) -> None:
    agent, workers, services, chains = own
    services.attester.faults.withholds = True
    bridge_id = burned(agent)
    workers.look()
    assert legs_of(agent.transaction(bridge_id))["source"] == "confirmed"
    own_nodes[ChainName.BASE].reorg(2)
    own_nodes[ChainName.BASE].mine(1)
    workers.look()
    row = agent.transaction(bridge_id)
    assert (row["status"], legs_of(row)["source"]) == ("pending", "pending")
    services.attester.faults.withholds = False
    row = workers.finish(bridge_id)
    assert row["status"] == "confirmed", row
    assert dollars(chains, agent, ChainName.BASE) == usdc(50)
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units


def test_an_arrival_in_an_orphaned_block_is_pending_again_and_minted_again(
    own: tuple[Agent, Workers, BridgeServer, dict[ChainName, EvmChain]], own_nodes: dict[ChainName, EvmNode]
) -> None:
    agent, workers, _services, chains = own
    ethereum = own_nodes[ChainName.ETHEREUM]
    bridge_id = burned(agent)
    assert workers.finish(bridge_id)["status"] == "confirmed"
    spent = agent.spent_this_month()
    ethereum.reorg(1)
    ethereum.mine(1)
    assert dollars(chains, agent, ChainName.ETHEREUM) == 0
    workers.look()
    row = agent.transaction(bridge_id)
    assert row["status"] == "pending", row
    assert row["events"][-1]["reason"] == "reorganised"
    row = workers.finish(bridge_id)
    assert (row["status"], agent.spent_this_month()) == ("confirmed", spent)
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units
    ethereum.mine(10)
    workers.look(2)


def test_a_refund_in_an_orphaned_block_is_reversed(
    own: tuple[Agent, Workers, BridgeServer, dict[ChainName, EvmChain]], own_nodes: dict[ChainName, EvmNode]
) -> None:
    agent, workers, services, chains = own
    base = own_nodes[ChainName.BASE]
    services.relay.refunds = True
    bridge_id, other = ether_out(agent), ether_out(agent)
    for each in (other, bridge_id):
        assert workers.finish(each)["error"] == "refunded"
    assert agent.spent_this_month() == 0
    base.reorg(1)
    base.mine(1)
    workers.look()
    rows = [agent.transaction(each) for each in (bridge_id, other)]
    (gone,) = [row for row in rows if row["status"] == "pending"]
    (stands,) = [row for row in rows if row is not gone]
    assert gone["events"][-1]["reason"] == "reorganised"
    assert agent.spent_this_month() > 0
    assert stands["error"] == "refunded"
    base.mine(80)
    workers.look(2)
    assert agent.transaction(gone["id"])["error"] == "refund_not_seen"
    assert agent.transaction(stands["id"])["error"] == "refunded"
    with read_only_unit() as session:
        assert session.get_one(Bridge, stands["id"]).next_step_at is None
    assert chains[ChainName.BASE].balances(agent.address).of(ETH).units < ether(0.76)


def test_a_late_mint_fails_although_the_bridge_has_arrived(
    own: tuple[Agent, Workers, BridgeServer, dict[ChainName, EvmChain]], own_nodes: dict[ChainName, EvmNode]
) -> None:
    agent, workers, services, chains = own
    ethereum = own_nodes[ChainName.ETHEREUM]
    bridge_id = burned(agent)
    ethereum.set_automine(on=False)
    workers.look()
    assert legs_of(agent.transaction(bridge_id))["destination"] == "pending"
    found = services.attester.messages(6, agent.transaction(bridge_id)["tx_hash"])
    assert found is not None
    (entry,) = found["messages"]
    proof = [bytes.fromhex(entry[name][2:]) for name in ("message", "attestation")]
    faster = ethereum.rpc(
        "eth_sendTransaction",
        {
            "from": ethereum.rpc("eth_accounts")[3], "to": DEPLOYMENTS["sandbox"].transmitter,
            "data": call_data("receiveMessage(bytes,bytes)", *proof), "gas": hex(500_000),
            "gasPrice": hex(10**12),
        },
    )  # fmt: skip
    ethereum.set_automine(on=True)
    ethereum.mine(1)
    row = workers.finish(bridge_id)
    assert (row["status"], row["error"], row["legs"][-1]["tx_hash"]) == ("confirmed", None, faster), row
    ours = ethereum.rpc("eth_getTransactionCount", agent.address, "latest")
    assert ours == "0x1"
    assert dollars(chains, agent, ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units


def test_a_bridge_that_advanced_after_a_backup_is_minted_once(
    agent: Agent,
    workers: Workers,
    services: BridgeServer,
    chains: dict[ChainName, EvmChain],
    build_app: Callable[..., Flask],
    database_url: str,
    tmp_path: Path,
) -> None:
    bridge_id = burned(agent)
    backup = backups.dump(database_url, tmp_path / "backup")
    assert workers.finish(bridge_id)["status"] == "confirmed"
    held = [dollars(chains, agent, chain) for chain in chains]
    set_back = f"sqlite:///{tmp_path / 'restored.sqlite'}"
    backups.restore(backup, set_back)
    app = app_on(build_app, set_back, chains, services)
    with app.app_context():
        again = replace(agent, client=app.test_client())
        assert again.transaction(bridge_id)["status"] == "pending"
        assert app.test_cli_runner().invoke(args=["restored"]).exit_code == 0
        row = Workers(again, ChainName.BASE, ChainName.ETHEREUM).finish(bridge_id)
        assert (row["status"], row["error"]) == ("confirmed", None)
    assert [dollars(chains, agent, chain) for chain in chains] == held
