"""Transfers and withdrawals of ETH and USDC on real nodes: what is answered, recorded, counted and moved."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from app.core.identifiers import new_id
from app.ports.errors import OutcomeUnknown, Unreachable
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT, evm_chain, fund, usdc
from tests.support.faults import FaultyChain

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


def fresh_address() -> str:
    return "0x" + new_id().replace("-", "") + "c0ffee00"


def test_a_transfer_of_usdc_is_confirmed_counted_and_on_the_chain(
    agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    to = fresh_address()
    answer = agent.move("12.5", "usdc", to=to)
    body = answer.get_json()
    assert answer.status_code == 200, body
    assert body["status"] == "confirmed"
    assert (body["amount"], body["currency"], body["chain"], body["type"]) == (
        "12.5",
        "USDC",
        "base",
        "transfer",
    )
    assert body["from"] == agent.address
    assert body["to"].lower() == to
    chain = chains[ChainName.BASE]
    assert chain.balances(body["to"]).of(USDC).units == usdc(12.5)
    assert chain.balances(agent.address).of(USDC).units == usdc(87.5)
    row = agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"], row["cost_usd"]) == ("confirmed", body["tx_hash"], 12.5)
    assert [event["status"] for event in row["events"]] == ["pending", "confirmed"]
    assert agent.spent_today() == 12.5


@pytest.mark.parametrize(
    ("chain", "currency", "amount"),
    [("base", "ETH", "0.01"), ("ethereum", "ETH", "0.01"), ("ethereum", "USDC", "3")],
)
def test_every_token_moves_on_every_chain(
    chain: str,
    currency: str,
    amount: str,
    agent: Agent,
    chains: dict[ChainName, EvmChain],
    ethereum_node: EvmNode,
) -> None:
    fund(ethereum_node, agent.address, eth=1, dollars=100)
    to = fresh_address()
    body = agent.move(amount, currency, chain=chain, to=to, how="withdraw").get_json()
    assert (body["status"], body["type"]) == ("confirmed", "withdrawal")
    token = {"ETH": ETH, "USDC": USDC}[currency]
    assert str(chains[ChainName(chain)].balances(body["to"]).of(token)) == amount


BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"amount": "0"}, "amount"),
    ({"amount": "-1"}, "amount"),
    ({"amount": "1e2"}, "amount"),
    ({"amount": " 1"}, "amount"),
    ({"amount": "1.0000001"}, "amount"),
    ({"amount": "NaN"}, "amount"),
    ({"amount": ""}, "amount"),
    ({"amount": "１"}, "amount"),
    ({"amount": "9" * 61}, "amount"),
    ({"amount": 10**400}, "amount"),
    ({"amount": True}, "amount"),
    ({"amount": None}, "amount"),
    ({"amount": ["1"]}, "amount"),
    ({"currency": "SOL"}, "currency"),
    ({"currency": "DAI"}, "currency"),
    ({"currency": 1}, "currency"),
    ({"chain": "polygon"}, "chain"),
    ({"chain": None}, "chain"),
    ({"to": "0x123"}, "to"),
    ({"to": "0x" + "0" * 40}, "to"),
    ({"to": "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"}, "to"),
    ({"to": "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eb48"}, "to"),
    ({"to": "EPjFWdd5AufqSSqeM2qN1xzybapC8G4wEGGkZwyTDt1v"}, "to"),
    ({"to": "\u0000"}, "to"),
    ({"dry_run": "yes"}, "dry_run"),
]


@pytest.mark.parametrize(("change", "field"), BAD_FIELDS)
@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_a_bad_field_moves_nothing_and_is_named(
    how: str, change: dict[str, Any], field: str, agent: Agent
) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT, **change}
    answer = agent.post(f"{agent.wallet_url}/{how}", body)
    assert answer.status_code == 400, answer.get_json()
    assert answer.get_json()["code"] == "INVALID_INPUT"
    assert field in answer.get_json()["details"]["fields"]
    assert agent.history() == []
    assert agent.spent_today() == 0


@pytest.mark.parametrize("field", ["amount", "currency", "chain", "to"])
def test_a_missing_field_moves_nothing_and_is_named(field: str, agent: Agent) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT}
    del body[field]
    answer = agent.post(f"{agent.wallet_url}/transfer", body)
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert field in answer.get_json()["details"]["fields"]
    assert agent.history() == []


@pytest.mark.parametrize("raw", [b"{", b"[]", b'"x"', b"1", b'{"amount": NaN}', b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_object_is_refused(raw: bytes, agent: Agent) -> None:
    answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")


def test_a_body_of_more_than_a_mebibyte_is_refused(agent: Agent) -> None:
    answer = agent.post(f"{agent.wallet_url}/transfer", {"to": "x" * 1024 * 1024})
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_a_json_number_is_taken_by_its_digits(agent: Agent, chains: dict[ChainName, EvmChain]) -> None:
    to = fresh_address()
    raw = f'{{"amount": 0.300001, "currency": "USDC", "chain": "base", "to": "{to}"}}'
    answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
    assert answer.status_code == 200, answer.get_json()
    assert chains[ChainName.BASE].balances(answer.get_json()["to"]).of(USDC).units == 300_001


@pytest.mark.parametrize("number", ["1e0", "15e-1", "1E2", "-1.0", "1.5e400"])
def test_a_json_number_with_an_exponent_or_sign_is_refused_like_its_text(number: str, agent: Agent) -> None:
    raw = f'{{"amount": {number}, "currency": "USDC", "chain": "base", "to": "{RECIPIENT}"}}'
    answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
    assert (answer.status_code, list(answer.get_json()["details"]["fields"])) == (400, ["amount"])
    assert agent.history() == []


@pytest.mark.parametrize("field", ["amount", "to", "currency"])
def test_a_field_that_is_named_twice_is_refused_for_a_filter_may_have_read_the_other(
    field: str, agent: Agent
) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT}
    raw = json.dumps(body)[:-1] + f', "{field}": "2"}}'
    answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert agent.history() == []


@pytest.mark.parametrize(
    "change", [{"currency": "u\u017fdc"}, {"dry_run": 0}, {"dry_run": 1}, {"dry_run": None}]
)
def test_what_merely_resembles_a_value_is_not_taken_for_it(change: dict[str, Any], agent: Agent) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT, **change}
    assert agent.post(f"{agent.wallet_url}/transfer", body).status_code == 400
    assert agent.history() == []


def test_a_dry_run_does_not_use_up_the_idempotency_key(agent: Agent) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT}
    assert (
        agent.post(f"{agent.wallet_url}/transfer", {**body, "dry_run": True}, Idempotency_Key="k").status_code
        == 200
    )
    assert (
        agent.post(f"{agent.wallet_url}/transfer", body, Idempotency_Key="k").get_json()["status"]
        == "confirmed"
    )


@pytest.mark.parametrize("route", ["transfer", "withdraw"])
@pytest.mark.parametrize("spelling", ["dry_run", "dryRun"])
def test_a_dry_run_repeated_under_a_key_moves_nothing_however_it_is_spelled(
    agent: Agent, route: str, spelling: str
) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT, spelling: True}
    for _ in range(2):
        quoted = agent.post(f"{agent.wallet_url}/{route}", body, Idempotency_Key="k").get_json()
        assert quoted["dry_run"] is True
    assert agent.history() == []
    assert agent.spent_today() == 0


def test_limits_come_in_their_order_and_say_what_is_left(agent: Agent) -> None:
    agent.controls(daily_limit_usd=20, weekly_limit_usd=500, monthly_limit_usd=1000, per_tx_limit_usd=15)
    over = agent.move("15.000001", "USDC").get_json()
    assert over["code"] == "PER_TX_LIMIT_EXCEEDED"
    assert agent.move("15", "USDC").status_code == 200
    answer = agent.move("5.000001", "USDC")
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (403, "DAILY_LIMIT_EXCEEDED")
    details = body["details"]
    assert (details["limit_usd"], details["spent_usd"], details["remaining_usd"]) == (20, 15, 5)
    assert details["resets_at"].endswith("Z")
    assert agent.move("5", "USDC").status_code == 200
    assert agent.spent_today() == 20


def test_a_recipient_off_the_allowlist_gets_nothing(agent: Agent) -> None:
    agent.controls(allowed_addresses=[RECIPIENT])
    refused = agent.move("1", "USDC", to=fresh_address())
    assert (refused.status_code, refused.get_json()["code"]) == (403, "ADDRESS_NOT_ALLOWED")
    assert agent.move("1", "USDC", to=RECIPIENT.lower()).status_code == 200


def test_what_the_wallet_does_not_have_is_refused_before_signing_and_given_back(agent: Agent) -> None:
    agent.unlimited()
    answer = agent.move("100.5", "USDC")
    body = answer.get_json()
    assert (answer.status_code, body["code"]) == (500, "TRANSFER_FAILED")
    assert body["details"]["reason"] == "insufficient_funds"
    assert body["details"]["missing"] == "0.5"
    row = agent.transaction(body["details"]["transaction_id"])
    assert (row["status"], row["tx_hash"], row["error"]) == ("failed", None, "insufficient_funds")
    assert agent.spent_today() == 0


def test_a_wallet_without_gas_learns_how_much_is_missing(
    chain_client: FlaskClient, base_node: EvmNode
) -> None:
    poor = register(chain_client)
    fund(base_node, poor.address, eth=0, dollars=10)
    body = poor.move("1", "USDC", how="withdraw").get_json()
    assert body["code"] == "WITHDRAWAL_FAILED"
    assert (body["details"]["reason"], body["details"]["currency"]) == ("insufficient_gas", "ETH")
    assert float(body["details"]["missing"]) > 0


def test_a_limit_is_named_before_the_missing_funds(agent: Agent) -> None:
    answer = agent.move("51", "USDC", chain="ethereum")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert agent.history() == []


def test_the_contract_s_own_refusal_is_told_and_nothing_is_sent(agent: Agent, base_node: EvmNode) -> None:
    blocked = fresh_address()
    blacklister, usdc_address = base_node.rpc("eth_accounts")[0], base_node.deployment.usdc
    data = "0xf9f92be4" + blocked[2:].rjust(64, "0")
    base_node.rpc("eth_sendTransaction", {"from": blacklister, "to": usdc_address, "data": data})
    body = agent.move("1", "USDC", to=blocked).get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "simulation_failed")
    assert agent.spent_today() == 0


def test_the_same_idempotency_key_pays_once(agent: Agent, chains: dict[ChainName, EvmChain]) -> None:
    to = fresh_address()
    first = agent.move("2", "USDC", to=to, Idempotency_Key="order-7")
    again = agent.move("2", "USDC", to=to, Idempotency_Key="order-7")
    assert first.get_json() == again.get_json()
    assert again.headers["Idempotent-Replayed"] == "true"
    assert chains[ChainName.BASE].balances(first.get_json()["to"]).of(USDC).units == usdc(2)
    other = agent.move("3", "USDC", to=to, Idempotency_Key="order-7")
    assert (other.status_code, other.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    assert len(agent.history()) == 1


def test_a_refusal_before_anything_was_recorded_is_decided_anew(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=1)
    assert agent.move("2", "USDC", Idempotency_Key="k").status_code == 403
    agent.controls(per_tx_limit_usd=2)
    assert agent.move("2", "USDC", Idempotency_Key="k").status_code == 200


def test_a_recorded_failure_is_answered_again_as_it_was(agent: Agent, base_node: EvmNode) -> None:
    agent.unlimited()
    first = agent.move("500", "USDC", Idempotency_Key="k")
    fund(base_node, agent.address, eth=0, dollars=1000)
    again = agent.move("500", "USDC", Idempotency_Key="k")
    assert first.status_code == again.status_code == 500
    assert first.get_json()["details"] == again.get_json()["details"]


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "é"])
def test_a_malformed_idempotency_key_is_refused(key: str, agent: Agent) -> None:
    answer = agent.move("1", "USDC", Idempotency_Key=key)
    assert answer.status_code == 400
    assert agent.history() == []


def test_a_dry_run_checks_everything_and_signs_nothing(agent: Agent) -> None:
    body = {"amount": "5", "currency": "USDC", "chain": "base", "to": RECIPIENT, "dry_run": True}
    found = agent.post(f"{agent.wallet_url}/transfer", body).get_json()
    assert (found["dry_run"], found["value_usd"], found["network_fee_currency"]) == (True, 5, "ETH")
    assert float(found["network_fee"]) > 0
    refused = agent.post(f"{agent.wallet_url}/transfer", {**body, "amount": "51"})
    assert refused.get_json()["code"] == "PER_TX_LIMIT_EXCEEDED"
    agent.unlimited()
    poor = agent.post(f"{agent.wallet_url}/transfer", {**body, "amount": "5000"})
    assert poor.get_json()["details"]["reason"] == "insufficient_funds"
    assert agent.history() == []
    assert agent.spent_today() == 0


def test_a_wallet_may_pay_itself_and_it_counts(agent: Agent) -> None:
    assert agent.move("0.001", "ETH", to=agent.address).get_json()["status"] == "confirmed"
    assert agent.spent_today() == 3


def test_another_agent_s_wallet_is_not_there(agent: Agent, chain_client: FlaskClient) -> None:
    stranger = register(chain_client)
    answer = stranger.post(f"{agent.wallet_url}/transfer", {"nonsense": True})
    assert (answer.status_code, answer.get_json()["code"]) == (404, "NOT_FOUND")
    assert stranger.post("/v1/wallets/not-an-id/transfer", {}).status_code == 404
    assert agent.client.post(f"{agent.wallet_url}/transfer", json={}).status_code == 401


Faulty = tuple[Agent, FaultyChain]


@pytest.fixture
def faulty(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Faulty]:
    """A funded agent whose Base can be told to fail."""
    chain = FaultyChain(chains[ChainName.BASE])
    app = build_app(
        sqlite_url, chains={**chains, ChainName.BASE: chain}, settings={"confirmation_wait_seconds": "0.3"}
    )
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=100)
        yield made, chain


def test_a_node_that_takes_the_transaction_and_loses_the_answer_never_leads_to_a_second_payment(
    faulty: Faulty, chains: dict[ChainName, EvmChain]
) -> None:
    agent, chain = faulty
    to = fresh_address()
    chain.raising("broadcast", "after", OutcomeUnknown("timeout"))
    answer = agent.move("2", "USDC", to=to, Idempotency_Key="k")
    assert answer.status_code == 200
    assert answer.get_json()["status"] in ("pending", "confirmed")
    again = agent.move("2", "USDC", to=to, Idempotency_Key="k")
    assert again.get_json() == answer.get_json()
    assert chains[ChainName.BASE].balances(answer.get_json()["to"]).of(USDC).units == usdc(2)


def test_an_unreachable_chain_fails_certainly_and_gives_the_amount_back(faulty: Faulty) -> None:
    agent, chain = faulty
    chain.raising("draft", "before", Unreachable("refused"))
    body = agent.move("2", "USDC").get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "chain_unreachable")
    assert agent.spent_today() == 0
    assert agent.move("2", "USDC").status_code == 200


def test_a_chain_that_is_lost_while_sending_leaves_it_pending_with_its_hold(faulty: Faulty) -> None:
    agent, chain = faulty
    chain.raising("broadcast", "before", Unreachable("refused"))
    body = agent.move("2", "USDC").get_json()
    assert body["status"] == "pending"
    assert body["tx_hash"].startswith("0x")
    assert agent.spent_today() == 2


@pytest.mark.parametrize("verb", ["broadcast", "outcomes"])
def test_a_defect_after_signing_is_answered_as_pending_and_never_as_a_failure(
    verb: str, faulty: Faulty
) -> None:
    agent, chain = faulty
    chain.raising(verb, "after", RuntimeError("boom"), times=100)
    answer = agent.move("2", "USDC", Idempotency_Key="k")
    body = answer.get_json()
    assert (answer.status_code, body["status"]) == (200, "pending")
    assert agent.transaction(body["transaction_id"])["tx_hash"] == body["tx_hash"]
    assert agent.move("2", "USDC", Idempotency_Key="k").get_json() == body
    assert len(agent.history()) == 1


def test_a_slow_node_does_not_make_the_caller_wait_longer_than_asked(faulty: Faulty) -> None:
    agent, chain = faulty
    answered = threading.Event()
    chain.fail("outcomes", "before", lambda: answered.wait(20), times=5)
    started = time.monotonic()
    body = agent.move("2", "USDC", Prefer="wait=1").get_json()
    waited = time.monotonic() - started
    answered.set()
    assert body["status"] == "pending"
    assert waited < 10


def test_a_dry_run_knows_what_pending_movements_have_used_up(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> None:
    app = build_app(sqlite_url, chains={ChainName.BASE: evm_chain(own_base_node)})
    with app.app_context():
        agent = register(app.test_client())
        fund(own_base_node, agent.address, eth=1, dollars=30)
        own_base_node.set_automine(False)
        agent.move("20", "USDC", Prefer="respond-async")
        body = {"amount": "20", "currency": "USDC", "chain": "base", "to": RECIPIENT, "dry_run": True}
        assert agent.post(f"{agent.wallet_url}/transfer", body).get_json()["details"]["missing"] == "10"


def test_a_defect_before_the_record_leaves_no_trace(faulty: Faulty) -> None:
    agent, chain = faulty
    chain.raising("sign", "after", RuntimeError("boom with a secret"))
    answer = agent.move("2", "USDC", Idempotency_Key="k")
    assert (answer.status_code, answer.get_json()["code"]) == (500, "INTERNAL_ERROR")
    assert "boom" not in answer.get_data(as_text=True)
    assert agent.history() == []
    assert agent.spent_today() == 0
    assert agent.move("2", "USDC", Idempotency_Key="k").status_code == 200


def test_respond_async_answers_pending_at_once(faulty: Faulty) -> None:
    agent, chain = faulty
    body = agent.move("2", "USDC", Prefer="respond-async").get_json()
    assert body["status"] == "pending"
    assert "outcomes" not in chain.calls


def test_what_pending_movements_need_is_not_promised_twice(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> None:

    app = build_app(sqlite_url, chains={ChainName.BASE: evm_chain(own_base_node)})
    with app.app_context():
        agent = register(app.test_client())
        fund(own_base_node, agent.address, eth=1, dollars=30)
        own_base_node.set_automine(False)
        assert agent.move("20", "USDC", Prefer="respond-async").get_json()["status"] == "pending"
        body = agent.move("20", "USDC", Prefer="respond-async").get_json()
        assert (body["code"], body["details"]["missing"]) == ("TRANSFER_FAILED", "10")
        own_base_node.set_automine(True)
        own_base_node.mine(1)
        assert agent.move("10", "USDC").get_json()["status"] == "confirmed"
