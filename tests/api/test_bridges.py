"""Bridges on real nodes: responses, records, limits and exact arrivals."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from solders.commitment_config import CommitmentLevel
from solders.compute_budget import ID as COMPUTE_BUDGET
from solders.hash import Hash
from solders.instruction import Instruction
from solders.message import MessageV0
from solders.pubkey import Pubkey
from solders.system_program import TransferParams, transfer
from solders.transaction import VersionedTransaction

from app.adapters.bridges.cctp import instructions, messages
from app.adapters.bridges.cctp.messages import CctpMessage
from app.adapters.bridges.cctp.solana_chain import SolanaCctpChain
from app.adapters.evm.chain import EvmChain
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.client.wire import LandedTransaction
from app.adapters.solana.send import transactions
from app.adapters.solana.track import account_history
from app.core.chains import ETH, USDC, ChainName
from app.core.money import parse_amount
from app.db.unit_of_work import unit_of_work
from app.spending import accounts as spending_accounts
from app.wallets.maintenance import restore_reconciliation
from sandbox.bridges import BridgeServer, Derivation
from sandbox.bridges.attester import AttesterFaults
from sandbox.bridges.server import BridgeFaults
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from solana_node.addresses import USDC_MINT, associated_token_address
from solana_node.cctp import FEE_OWNER, LOOKUP_TABLE
from solana_node.genesis import FAUCET
from tests.support.agents import Agent, register
from tests.support.bridges import Workers, bridge, legs_of, running_bridges
from tests.support.chains import ether, fund, usdc
from tests.support.evm import await_mined
from tests.support.mcp import call
from tests.support.solana import fund_solana, solana_chain
from tests.support.waiting import wait_until

pytestmark = pytest.mark.chain
EVM = (ChainName.ETHEREUM, ChainName.BASE)


@pytest.fixture(scope="session")
def services(ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode) -> Iterator[BridgeServer]:
    urls = {"ethereum": ethereum_node.url, "base": base_node.url, "solana": solana_node.url}
    with running_bridges(**urls) as server:
        yield server


@pytest.fixture(autouse=True)
def _reset_services(services: BridgeServer) -> Iterator[None]:
    yield
    services.faults = BridgeFaults()
    services.attester.faults = AttesterFaults()
    services.relay.refunds = services.relay.is_stalled = False


@pytest.fixture
def all_chains(chains: dict[ChainName, EvmChain], solana_node: SolanaNode) -> dict[ChainName, EvmChain | SolanaChain]:
    return {**chains, ChainName.SOLANA: solana_chain(solana_node)}


@pytest.fixture
def app(
    build_app: Callable[..., Flask], sqlite_url: str, all_chains: dict[ChainName, Any], services: BridgeServer
) -> Flask:
    settings = {
        "cctp_attestation_url": services.url, "relay_base_url": services.url,
        "lifi_base_url": services.url + "/v1",
    }  # fmt: skip
    return build_app(sqlite_url, chains=all_chains, settings=settings)


@pytest.fixture
def agent(app: Flask, ethereum_node: EvmNode, base_node: EvmNode, solana_node: SolanaNode) -> Iterator[Agent]:
    """An agent with 1 native token and 100 USDC on each chain."""
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=100)
        fund(ethereum_node, made.address, eth=1, dollars=100)
        fund_solana(solana_node, made.solana_address, sol=1, dollars=100)
        yield made


@pytest.fixture
def workers(agent: Agent) -> Workers:
    return Workers(agent, *ChainName)


def held(chains: dict[ChainName, Any], agent: Agent, chain: str) -> int:
    """Return micro-USDC."""
    name = ChainName(chain)
    address = agent.solana_address if name is ChainName.SOLANA else agent.address
    units: int = chains[name].balances(address).of(USDC).units
    return units


@pytest.mark.parametrize(
    ("source", "destination"), [(a.value, b.value) for a in ChainName for b in ChainName if a is not b]
)
def test_usdc_arrives_on_the_other_chain_exactly(
    source: str, destination: str, agent: Agent, all_chains: dict[ChainName, Any], workers: Workers
) -> None:
    answer = bridge(agent, source, destination, "50")
    body = answer.get_json()
    assert answer.status_code == 200, body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    assert held(all_chains, agent, source) == usdc(50)
    received = parse_amount(row["received_amount"], USDC).units
    assert held(all_chains, agent, destination) == usdc(100) + received
    assert usdc(49.5) < received < usdc(50)


def ether_held(chains: dict[ChainName, Any], agent: Agent, chain: str) -> int:
    units: int = chains[ChainName(chain)].balances(agent.address).of(ETH).units
    return units


def test_ether_is_bridged_by_the_portal_in_full(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers, ethereum_node: EvmNode, base_node: EvmNode
) -> None:
    # Messages of other tests that were never relayed.
    Derivation(ethereum_node, base_node).derive()
    body = bridge(agent, "ethereum", "base", "0.25", "ETH").get_json()
    assert body["status"] == "pending", body
    assert (body["fee"], body["received_amount"]) == ("0", None)
    workers.look()
    assert agent.transaction(body["transaction_id"])["status"] == "pending"
    (tx_hash,) = Derivation(ethereum_node, base_node).derive()
    row = workers.finish(body["transaction_id"])
    assert (row["status"], row["received_amount"], row["cost_usd"]) == ("confirmed", "0.25", 0)
    assert row["legs"][-1]["tx_hash"] == tx_hash
    assert legs_of(row) == {"source": "confirmed", "destination": "confirmed"}
    assert ether_held(all_chains, agent, "base") == ether(1.25)
    assert ether(0.74) < ether_held(all_chains, agent, "ethereum") < ether(0.75)


def test_a_nonce_used_by_an_arrival_of_the_portal_is_known_and_another_is_not(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers, ethereum_node: EvmNode, base_node: EvmNode
) -> None:
    Derivation(ethereum_node, base_node).derive()
    body = bridge(agent, "ethereum", "base", "0.25", "ETH").get_json()
    Derivation(ethereum_node, base_node).derive()
    base = all_chains[ChainName.BASE]
    (gap,) = restore_reconciliation.nonce_gaps(base, only_recent=True)
    assert (gap.address, len(gap.missing_nonces)) == (agent.address, 1)
    workers.finish(body["transaction_id"])
    assert not list(restore_reconciliation.nonce_gaps(base, only_recent=True))
    base_node.rpc("anvil_impersonateAccount", agent.address)
    stolen = {"from": agent.address, "to": agent.address, "value": "0x1"}
    tx_hash = base_node.rpc("eth_sendTransaction", stolen)
    await_mined(base_node, tx_hash)
    (gap,) = restore_reconciliation.nonce_gaps(base, only_recent=True)
    assert gap.address == agent.address


def test_ether_is_bridged_by_relay_less_the_fee(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers
) -> None:
    body = bridge(agent, "base", "ethereum", "0.25", "ETH").get_json()
    assert (body["status"], body["route"]) == ("pending", "Relay"), body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    received = parse_amount(row["received_amount"], ETH).units
    assert ether(0.249) < received < ether(0.25)
    assert ether_held(all_chains, agent, "ethereum") == ether(1) + received
    assert ether(0.74) < ether_held(all_chains, agent, "base") < ether(0.75)
    assert agent.spent_this_month() == row["cost_usd"] > 0


def test_one_agent_cannot_use_up_the_quotes_of_all_bridges(
    build_app: Callable[..., Flask], sqlite_url: str, all_chains: dict[ChainName, Any], services: BridgeServer
) -> None:
    settings = {"cctp_attestation_url": services.url, "quote_rate_limit": "1 per hour"}
    app = build_app(sqlite_url, chains=all_chains, settings=settings)
    with app.app_context():
        greedy, other = register(app.test_client()), register(app.test_client())
        bridge(greedy, "ethereum", "base", "5", "USDC")
        assert bridge(greedy, "ethereum", "base", "5", "USDC").get_json()["code"] == "RATE_LIMITED"
        assert bridge(other, "ethereum", "base", "5", "USDC").get_json()["code"] != "RATE_LIMITED"


@pytest.mark.parametrize("status", [429, 503])
def test_li_fi_is_used_if_relay_has_no_quote(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers, services: BridgeServer, status: int
) -> None:
    services.faults.status, services.faults.paths = status, ("/quote/v2",)
    body = bridge(agent, "base", "ethereum", "0.25", "ETH").get_json()
    assert (body["status"], body["route"]) == ("pending", "LI.FI, Relay"), body
    row = workers.finish(body["transaction_id"])
    assert row["status"] == "confirmed", row
    received = parse_amount(row["received_amount"], ETH).units
    assert ether_held(all_chains, agent, "ethereum") == ether(1) + received


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"source_chain": "ethereum"}, "destination_chain"),
    ({"source_chain": "polygon"}, "source_chain"),
    ({"destination_chain": 7}, "destination_chain"),
    ({"token": "SOL"}, "token"),
    ({"token": "DAI"}, "token"),
    ({"token": "ETH", "destination_chain": "solana"}, "token"),
    ({"amount": "0"}, "amount"),
    ({"amount": "0.0000001"}, "amount"),
    ({"amount": None}, "amount"),
    ({"dry_run": 1}, "dry_run"),
]


def test_an_impossible_bridge_is_refused_and_nothing_moves(agent: Agent) -> None:
    refused = [_refusal_of(agent, change) for change, _ in BAD_FIELDS]
    assert refused == [(400, "INVALID_INPUT", [field]) for _, field in BAD_FIELDS]
    assert agent.history() == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_nothing_is_burned_for_an_address_that_the_issuer_has_blocked(
    agent: Agent, base_node: EvmNode, all_chains: dict[ChainName, Any], *, dry_run: bool
) -> None:
    data = "0xf9f92be4" + agent.address[2:].rjust(64, "0")
    listing = {"from": base_node.rpc("eth_accounts")[0], "to": base_node.deployment.usdc, "data": data}
    await_mined(base_node, base_node.rpc("eth_sendTransaction", listing))
    before = held(all_chains, agent, "ethereum")

    for source in ("ethereum", "solana"):
        body = {"source_chain": source, "destination_chain": "base", "token": "USDC", "amount": "5"}
        answer = agent.post(f"{agent.wallet_url}/bridge", {**body, "dry_run": dry_run})
        assert (answer.status_code, answer.get_json()["details"]["reason"]) == (500, "recipient_blocked")
    assert held(all_chains, agent, "ethereum") == before
    funding = {"chain": "base", "amount": "1", "currency": "USDC"}
    answer = agent.post(f"{agent.wallet_url}/fund", funding)
    assert answer.status_code == 400
    assert "blacklisted" in answer.get_json()["error"]


def _refusal_of(agent: Agent, change: dict[str, Any]) -> tuple[int, str, list[str]]:
    body = {
        "source_chain": "base", "destination_chain": "ethereum", "token": "USDC", "amount": "5", **change,
    }  # fmt: skip
    answer = agent.post(f"{agent.wallet_url}/bridge", body)
    said = answer.get_json()
    return answer.status_code, said["code"], list(said["details"]["fields"])


def test_an_unserved_pair_is_refused_with_the_possible_routes(agent: Agent) -> None:
    answer = bridge(agent, "ethereum", "solana", "1", "ETH").get_json()
    assert answer["details"]["fields"] == {"token": ["must be USDC from ethereum to solana"]}
    possible = {tuple(route.values()) for route in answer["details"]["possible"]}
    assert len(possible) == 8
    assert ("base", "ethereum", "ETH") in possible


def test_dry_runs_in_both_spellings_sign_nothing(agent: Agent, all_chains: dict[ChainName, Any]) -> None:
    path = f"{agent.wallet_url}/bridge"
    body = {"sourceChain": "base", "destinationChain": "solana", "token": "usdc", "amount": 20, "dryRun": True}
    found = agent.post(path, body, Idempotency_Key="k").get_json()
    assert (found["dry_run"], found["route"], found["fee"]) == (True, "CCTP V2, fast", "0.0022")
    assert (found["value_usd"], found["network_fee_currency"]) == (0.0022, "ETH")
    assert 0 < found["network_fee_usd"] < 25
    assert agent.history() == []
    assert held(all_chains, agent, "base") == usdc(100)


def test_only_the_fee_counts_and_a_limit_refuses_a_bridge_before_signing(
    agent: Agent, all_chains: dict[ChainName, Any]
) -> None:
    agent.controls(per_tx_limit_usd=0.001, allowed_addresses=["0x00000000000000000000000000000000C0FFEE00"])
    answer = bridge(agent, "base", "solana", "20")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert agent.history() == []
    agent.controls(per_tx_limit_usd=0.01)
    assert bridge(agent, "base", "solana", "20").get_json()["status"] == "pending"
    assert agent.spent_this_month() == 0.0022
    assert held(all_chains, agent, "base") == usdc(80)


def test_a_repeated_request_bridges_once(agent: Agent, all_chains: dict[ChainName, Any]) -> None:
    first, second = (bridge(agent, "base", "solana", "20", Idempotency_Key="once") for _ in range(2))
    assert first.get_json()["transaction_id"] == second.get_json()["transaction_id"]
    assert held(all_chains, agent, "base") == usdc(80)
    assert len(agent.history()) == 1


def test_an_unaffordable_bridge_is_refused_before_signing_and_not_counted(agent: Agent) -> None:
    for source, destination, amount, coin, reason in (
        ("base", "ethereum", "100.5", "USDC", "insufficient_funds"),
        ("solana", "base", "100.5", "USDC", "insufficient_funds"),
        ("ethereum", "base", "1", "ETH", "insufficient_funds"),
        ("base", "ethereum", "1", "ETH", "insufficient_funds"),
        ("base", "ethereum", "0.00001", "ETH", "amount_too_small"),
    ):
        case = f"{amount} {coin} from {source}"
        answer = bridge(agent, source, destination, amount, coin)
        body = answer.get_json()
        assert (answer.status_code, body["code"], body["details"]["reason"]) == (500, "BRIDGE_FAILED", reason), case
        row = agent.transaction(body["details"]["transaction_id"])
        assert (row["status"], row["kind"], row["tx_hash"], row["error"]) == ("failed", "bridge", None, reason), case
        assert agent.spent_this_month() == 0, case


def test_missing_gas_on_either_chain_is_reported_with_amount_and_token(
    app: Flask, base_node: EvmNode, services: BridgeServer
) -> None:
    with app.app_context():
        poor = register(app.test_client())
        fund(base_node, poor.address, eth=0, dollars=10)
        services.attester.faults.offers_forwarding = False
        for destination, currency in (("ethereum", "ETH"), ("solana", "SOL")):
            details = bridge(poor, "base", destination, "5").get_json()["details"]
            assert (details["reason"], details["chain"]) == ("insufficient_gas", destination)
            assert (details["currency"], float(details["missing"]) > 0) == (currency, True)
        # Circle mints for a wallet without gas, so that only the gas of the source chain is missing.
        services.attester.faults.offers_forwarding = True
        details = bridge(poor, "base", "ethereum", "5").get_json()["details"]
        assert (details["reason"], details["currency"], "chain" in details) == ("insufficient_gas", "ETH", False)
        fund(base_node, poor.address, eth=1)
        assert bridge(poor, "base", "ethereum", "5", dry_run=True).get_json()["route"].endswith("forwarded")


def test_an_unavailable_quote_service_moves_nothing(
    agent: Agent, services: BridgeServer, all_chains: dict[ChainName, Any]
) -> None:
    services.faults.status = 503
    for source, destination, amount, coin in (("base", "ethereum", "5", "USDC"), ("base", "ethereum", "0.1", "ETH")):
        body = bridge(agent, source, destination, amount, coin).get_json()
        assert (body["code"], body["details"]["reason"]) == ("BRIDGE_FAILED", "quote_unavailable")
    assert held(all_chains, agent, "base") == usdc(100)
    assert ether_held(all_chains, agent, "base") == ether(1)


def _to_other_recipient(document: Any) -> None:
    document["steps"][0]["items"][0]["data"]["to"] = "0x00000000000000000000000000000000C0FFEE66"


def _more_value(document: Any) -> None:
    document["steps"][0]["items"][0]["data"]["value"] = str(ether(0.5))


def _another_function(document: Any) -> None:
    said = document["steps"][0]["items"][0]["data"]
    said["data"] = "0xa9059cbb" + said["data"][10:]


def _for_another_depositor(document: Any) -> None:
    said = document["steps"][0]["items"][0]["data"]
    said["data"] = said["data"][:10] + "00" * 12 + "66" * 20 + said["data"][74:]


def _an_approval_first(document: Any) -> None:
    document["steps"].insert(0, document["steps"][0])


def _on_another_chain(document: Any) -> None:
    document["steps"][0]["items"][0]["data"]["chainId"] = 1


LIES = [
    _to_other_recipient, _more_value, _another_function, _for_another_depositor, _an_approval_first, _on_another_chain,
]  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_relay_transactions_other_than_the_deposit_are_never_signed(
    lie: Callable[[Any], None], agent: Agent, services: BridgeServer, all_chains: dict[ChainName, Any]
) -> None:
    def spoil(path: str, document: Any) -> Any:
        if path == "/quote/v2":
            lie(document)
        else:
            document["transactionRequest"]["to"] = "0x00000000000000000000000000000000C0FFEE66"
        return document

    services.faults.change, services.faults.paths = spoil, ("/quote/v2", "/v1/quote")
    body = bridge(agent, "base", "ethereum", "0.1", "ETH").get_json()
    assert (body["code"], body["details"]["reason"]) == ("BRIDGE_FAILED", "unsafe_instructions")
    assert ether_held(all_chains, agent, "base") == ether(1)


def test_a_route_with_an_excessive_fee_is_refused(agent: Agent, services: BridgeServer) -> None:
    def greedy(path: str, document: Any) -> Any:
        if path == "/quote/v2":
            document["details"]["currencyOut"]["minimumAmount"] = str(ether(0.05))
        else:
            document["estimate"]["toAmountMin"] = str(ether(0.05))
        return document

    services.faults.change, services.faults.paths = greedy, ("/quote/v2", "/v1/quote")
    body = bridge(agent, "base", "ethereum", "0.1", "ETH").get_json()
    assert (body["code"], body["details"]["reason"]) == ("BRIDGE_FAILED", "bridge_fee_too_high")


def test_a_wallet_with_a_pending_bridge_is_not_deleted(agent: Agent, services: BridgeServer) -> None:
    services.attester.faults.withholds = True
    bridge_id = bridge(agent, "base", "solana", "20").get_json()["transaction_id"]
    answer = agent.delete(agent.wallet_url)
    assert (answer.status_code, answer.get_json()["code"]) == (409, "TRANSACTION_IN_PROGRESS")
    assert answer.get_json()["details"]["transaction_id"] == bridge_id


def test_the_legs_of_a_bridge_are_not_listed_as_transactions(agent: Agent) -> None:
    bridge(agent, "base", "solana", "20")
    page = agent.get(f"{agent.wallet_url}/transactions").get_json()
    assert (len(page["transactions"]), page["pagination"]["total"]) == (1, 1)
    assert agent.get(agent.wallet_url).get_json()["transaction_count"] == 1
    only = page["transactions"][0]
    assert (only["type"], only["kind"], only["to_address"]) == ("transfer", "bridge", agent.solana_address)
    assert {leg["leg"] for leg in only["legs"]} == {"approve", "source", "attestation", "destination"}


def test_a_frozen_wallet_starts_no_bridge_and_pending_ones_arrive(agent: Agent, workers: Workers) -> None:
    bridge_id = bridge(agent, "base", "solana", "20").get_json()["transaction_id"]
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, agent.id, frozen=True)
    answer = bridge(agent, "base", "solana", "20")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "WALLET_FROZEN")
    assert workers.finish(bridge_id)["status"] == "confirmed"


def test_a_bridge_creates_the_first_usdc_account_on_solana(
    app: Flask, base_node: EvmNode, solana_node: SolanaNode, services: BridgeServer, all_chains: dict[ChainName, Any]
) -> None:
    with app.app_context():
        newcomer = register(app.test_client())
        fund(base_node, newcomer.address, eth=1, dollars=100)
        fund_solana(solana_node, newcomer.solana_address, sol=0.01)
        bridge_id = bridge(newcomer, "base", "solana", "20").get_json()["transaction_id"]
        row = Workers(newcomer, *ChainName).finish(bridge_id)
        assert row["status"] == "confirmed", row
        assert [leg["leg"] for leg in row["legs"]] == [
            "approve", "source", "attestation", "account", "destination",
        ]  # fmt: skip
        assert held(all_chains, newcomer, "solana") == parse_amount(row["received_amount"], USDC).units
        # Another party may have been faster: the arrival counts, whichever transaction delivered it.
        again = bridge(newcomer, "base", "solana", "10").get_json()["transaction_id"]
        with_hash = newcomer.transaction(again)["tx_hash"]
        minted = mint_on_solana(services, all_chains[ChainName.SOLANA], with_hash)
        # A later transaction that names the account of its nonce delivers nothing.
        name_the_nonce_of(services, all_chains[ChainName.SOLANA], with_hash)
        row = Workers(newcomer, *ChainName).finish(again)
        assert (row["status"], row["legs"][-1]["tx_hash"]) == ("confirmed", minted), row


def test_a_nonce_used_by_another_burn_is_not_an_arrival_on_solana(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers, services: BridgeServer
) -> None:
    first = bridge(agent, "base", "solana", "20").get_json()["transaction_id"]
    assert workers.finish(first)["status"] == "confirmed"
    used = attested(services, agent.transaction(first)["tx_hash"])[0].nonce
    before, counted = held(all_chains, agent, "solana"), agent.spent_this_month()
    # A different amount, and the same one, so that only the nonce distinguishes the burns.
    services.attester.faults.message_change = {12: used}
    others = [bridge(agent, "base", "solana", each).get_json()["transaction_id"] for each in ("30", "20")]
    workers.look(3)
    for each in others:
        row = agent.transaction(each)
        assert (row["status"], row["error"], row["received_amount"]) == ("pending", "mint_not_seen", None)
    assert held(all_chains, agent, "solana") == before
    services.attester.faults.message_change = {}
    for each in others:
        services.attester.renew(entry_of(services, agent.transaction(each)["tx_hash"])["eventNonce"])
    rows = [workers.finish(each) for each in others]
    assert [row["status"] for row in rows] == ["confirmed", "confirmed"]
    received = sum(parse_amount(row["received_amount"], USDC).units for row in rows)
    assert held(all_chains, agent, "solana") == before + received
    assert agent.spent_this_month() > counted


def entry_of(services: BridgeServer, tx_hash: str) -> dict[str, Any]:
    found = wait_until(lambda: services.attester.messages(6, tx_hash), what="the burn")
    assert found is not None
    entry: dict[str, Any] = found["messages"][0]
    return entry


def attested(services: BridgeServer, tx_hash: str) -> tuple[CctpMessage, bytes]:
    """Return message and attestation of a burn on Base."""
    entry = entry_of(services, tx_hash)
    return messages.read(bytes.fromhex(entry["message"][2:])), bytes.fromhex(entry["attestation"][2:])


def name_the_nonce_of(services: BridgeServer, chain: SolanaChain, tx_hash: str) -> None:
    """Have the faucet send a transaction that names the account of a burn's nonce."""
    account = instructions.used_nonce(attested(services, tx_hash)[0])
    paying = TransferParams(from_pubkey=FAUCET.pubkey(), to_pubkey=account, lamports=1)
    sent_by_the_faucet(chain, transfer(paying))


def sent_by_the_faucet(chain: SolanaChain, instruction: Instruction) -> str:
    """Send what the faucet signs, wait until it has landed, and return the signature."""
    compiled = MessageV0.try_compile(FAUCET.pubkey(), [instruction], [], Hash.from_string(chain.head().hash))
    transaction = VersionedTransaction(compiled, [FAUCET])
    signature = str(transaction.signatures[0])
    chain.broadcast(bytes(transaction))

    def landed() -> LandedTransaction | None:
        call = account_history.transaction(signature, CommitmentLevel.Confirmed, LandedTransaction)
        chain.rpc.run(call)
        return call.result_or_none

    wait_until(landed, what="the transaction")
    return signature


def mint_on_solana(services: BridgeServer, chain: SolanaChain, tx_hash: str) -> str:
    """Have the faucet submit the mint of a burn on Base, and return the signature."""
    message, attestation = attested(services, tx_hash)
    receiving = instructions.receive_message(
        message,
        attestation,
        Pubkey.from_string(USDC_MINT),
        payer=FAUCET.pubkey(),
        token_account=Pubkey.from_bytes(message.burn.recipient),
        fee_account=associated_token_address(FEE_OWNER, Pubkey.from_string(USDC_MINT)),
    )
    return sent_by_the_faucet(chain, receiving)


def budget_of(transaction: VersionedTransaction) -> tuple[int, int] | None:
    """Return a transaction's limit of compute units and their price, None if it has no budget."""
    message = transaction.message
    found = [
        bytes(each.data)
        for each in message.instructions
        if message.account_keys[each.program_id_index] == COMPUTE_BUDGET
    ]
    return tuple(int.from_bytes(data[1:], "little") for data in found) or None  # type: ignore[return-value]


def test_a_mint_with_two_attestations_has_a_computed_budget_and_a_priority_fee(
    agent: Agent, services: BridgeServer, all_chains: dict[ChainName, Any]
) -> None:
    bridge_id = bridge(agent, "base", "solana", "20").get_json()["transaction_id"]
    message, attestation = attested(services, agent.transaction(bridge_id)["tx_hash"])
    assert len(attestation) == 130

    def drafted(table: str | None, failures: int = 0) -> VersionedTransaction:
        side = SolanaCctpChain(all_chains[ChainName.SOLANA], table)
        step = side.draft_mint(agent.solana_address, message, attestation, failures=failures)
        return transactions.decode(str(step.draft.terms["transaction"]))

    first, second = drafted(LOOKUP_TABLE), drafted(LOOKUP_TABLE, failures=1)
    assert len(bytes(first)) <= 1232
    assert len(first.message.address_table_lookups) == 1
    budget, higher = budget_of(first), budget_of(second)
    assert budget is not None
    assert higher is not None
    # Each of two signatures takes 25 000 units, and the usual limit is 200 000.
    assert 50_000 < budget[0] < 200_000
    assert budget[1] == 1
    assert 1.9 < higher[0] / budget[0] < 2.1
    assert higher[1] == 50_000
    for missing in (None, str(Pubkey.new_unique())):
        bare = drafted(missing)
        assert (len(bytes(bare)) <= 1232, budget_of(bare)) == (True, None)


def test_a_mint_that_did_not_land_is_retried_with_more(agent: Agent, workers: Workers, solana_node: SolanaNode) -> None:
    bridge_id = bridge(agent, "base", "solana", "20").get_json()["transaction_id"]
    solana_node.faults(drop=10**6)
    try:
        while agent.transaction(bridge_id)["legs"][-1]["tx_hash"] is None:
            workers.look()
        solana_node.advance(250)
        workers.look()
    finally:
        solana_node.faults()
    row = workers.finish(bridge_id)
    assert row["status"] == "confirmed", row
    options = {"encoding": "base64", "commitment": "confirmed", "maxSupportedTransactionVersion": 0}
    landed = solana_node.call("getTransaction", row["legs"][-1]["tx_hash"], options)
    minted = VersionedTransaction.from_bytes(base64.b64decode(landed["transaction"][0]))
    budget = budget_of(minted)
    assert budget is not None
    assert budget[1] == 50_000, row["legs"]
    assert len(minted.message.address_table_lookups) == 1


def test_a_bridge_by_a_tool_is_made_once_however_often_it_is_retried(
    agent: Agent, all_chains: dict[ChainName, Any], workers: Workers
) -> None:
    order = {
        "wallet_id": agent.wallet_id, "source_chain": "base", "destination_chain": "ethereum", "token": "USDC",
        "amount": "50",
    }  # fmt: skip
    results = [call(agent.client, "bridge", agent.key, **order, request_id="bridge-1") for _ in range(3)]
    ids = {each["structuredContent"]["transaction_id"] for each in results}
    assert len(ids) == 1
    assert workers.finish(ids.pop())["status"] == "confirmed"
    assert held(all_chains, agent, "base") == usdc(50)
    assert usdc(149.5) < held(all_chains, agent, "ethereum") < usdc(150)
