"""Transfers and withdrawals of ETH and USDC on real nodes: responses, records, limits and balances."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.core.chains import ETH, USDC, ChainName
from app.core.money import parse_amount
from app.db.unit_of_work import snapshot
from app.ports.errors import Unreachable
from app.wallets import transfers
from app.wallets.core.models import Transaction
from app.wallets.transactions import settlement
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import RECIPIENT, evm_chain, fund, usdc
from tests.support.drivers import fresh_address
from tests.support.evm import await_mined
from tests.support.faults import FaultyChain

pytestmark = pytest.mark.chain


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    return funded_agent


def test_a_transfer_of_usdc_is_confirmed_counted_and_on_the_chain(
    agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    to = fresh_address()
    answer = agent.move("12.5", "usdc", to=to)
    body = answer.get_json()
    assert answer.status_code == 200, body
    assert body["status"] == "confirmed"
    assert (body["amount"], body["currency"], body["chain"], body["type"]) == ("12.5", "USDC", "base", "transfer")
    assert body["from"] == agent.address
    assert body["to"].lower() == to
    chain = chains[ChainName.BASE]
    assert chain.balances(body["to"]).of(USDC).units == usdc(12.5)
    assert chain.balances(agent.address).of(USDC).units == usdc(87.5)
    row = agent.transaction(body["transaction_id"])
    assert (row["status"], row["tx_hash"], row["cost_usd"]) == ("confirmed", body["tx_hash"], 12.5)
    assert [event["status"] for event in row["events"]] == ["pending", "confirmed"]
    assert agent.spent_this_month() == 12.5


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_all_that_can_leave_moves_and_the_answer_states_it(
    how: str, agent: Agent, chains: dict[ChainName, EvmChain]
) -> None:
    agent.unlimited()
    to, chain = fresh_address(), chains[ChainName.BASE]
    quote = agent.move("max", "USDC", how=how, to=to, options={"dry_run": True}).get_json()
    assert (quote["amount"], agent.spent_this_month()) == ("100", 0)
    assert agent.move("max", "USDC", how=how, to=to).get_json()["amount"] == "100"
    assert chain.balances(agent.address).of(USDC).units == 0
    body = agent.move("max", "ETH", how=how, to=to).get_json()
    assert body["status"] == "confirmed", body
    assert chain.balances(to).of(ETH) == parse_amount(body["amount"], ETH)
    # The fee was reserved at its maximum.
    assert chain.balances(agent.address).of(ETH).units < 10**15
    refused = agent.move("max", "USDC", how=how, to=to).get_json()
    assert refused["details"]["reason"] == "insufficient_funds", refused


def test_all_that_can_leave_is_what_pending_movements_leave(faulty: Faulty) -> None:
    agent, chain = faulty
    agent.unlimited()
    chain.raising("broadcast", "before", Unreachable("node_down"), times=100)
    assert agent.move("30", "USDC", Prefer="respond-async").get_json()["status"] == "pending"
    body = agent.move("max", "USDC", to=fresh_address(), Prefer="respond-async").get_json()
    assert (body["status"], body["amount"]) == ("pending", "70"), body


def test_all_that_can_leave_is_decided_again_if_another_movement_takes_some_of_it(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent.unlimited()
    settled = transfers.settled

    def settle_and_lose_some(*order: Any) -> transfers.TransferOrder:
        found = settled(*order)
        monkeypatch.setattr(transfers, "settled", settled)
        assert agent.move("40", "USDC").get_json()["status"] == "confirmed"
        return found

    monkeypatch.setattr(transfers, "settled", settle_and_lose_some)
    body = agent.move("max", "USDC", to=fresh_address()).get_json()
    assert (body["status"], body["amount"]) == ("confirmed", "60"), body
    assert [row["amount"] for row in agent.history()] == ["60", "40"]


def test_all_that_can_leave_is_refused_above_a_limit_and_moves_nothing(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=99)
    assert agent.move("max", "USDC").get_json()["code"] == "PER_TX_LIMIT_EXCEEDED"
    assert (agent.history(), agent.spent_this_month()) == ([], 0)
    assert agent.move("MAX", "USDC").status_code == 400


@pytest.mark.parametrize(
    ("chain", "currency", "amount"), [("base", "ETH", "0.01"), ("ethereum", "ETH", "0.01"), ("ethereum", "USDC", "3")]
)
def test_every_token_moves_on_every_chain(
    chain: str, currency: str, amount: str, agent: Agent, chains: dict[ChainName, EvmChain], ethereum_node: EvmNode
) -> None:
    fund(ethereum_node, agent.address, eth=1, dollars=100)
    to = fresh_address()
    body = agent.move(amount, currency, chain=chain, to=to, how="withdraw").get_json()
    assert (body["status"], body["type"]) == ("confirmed", "withdrawal")
    token = {"ETH": ETH, "USDC": USDC}[currency]
    assert str(chains[ChainName(chain)].balances(body["to"]).of(token)) == amount


VALID = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT}


def refused_field(answer: TestResponse) -> list[str]:
    """Return the fields that a refusal names, none of another response."""
    body = answer.get_json()
    refused = (answer.status_code, body.get("code")) == (400, "INVALID_INPUT")
    return list(body["details"]["fields"]) if refused else []


def assert_nothing_moved(agent: Agent) -> None:
    assert agent.history() == []
    assert agent.spent_this_month() == 0


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
    ({"dry_run": 0}, "dry_run"),
    ({"dry_run": 1}, "dry_run"),
    ({"dry_run": None}, "dry_run"),
    ({"currency": "u\u017fdc"}, "currency"),
]


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
def test_an_invalid_field_moves_nothing_and_is_reported(how: str, agent: Agent) -> None:
    for change, field in BAD_FIELDS:
        answer = agent.post(f"{agent.wallet_url}/{how}", {**VALID, **change})
        assert refused_field(answer) == [field], (change, answer.get_json())
    assert_nothing_moved(agent)


def test_a_missing_field_moves_nothing_and_is_reported(agent: Agent) -> None:
    for field in VALID:
        body = {name: value for name, value in VALID.items() if name != field}
        answer = agent.post(f"{agent.wallet_url}/transfer", body)
        assert refused_field(answer) == [field], answer.get_json()
    assert_nothing_moved(agent)


def test_a_body_that_is_not_a_json_object_is_refused(agent: Agent) -> None:
    for raw in (b"{", b"[]", b'"x"', b"1", b'{"amount": NaN}', b"\xff", b"[" * 100_000):
        answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), raw[:20]
    assert_nothing_moved(agent)


def test_a_body_larger_than_one_mebibyte_is_refused(agent: Agent) -> None:
    answer = agent.post(f"{agent.wallet_url}/transfer", {"to": "x" * 1024 * 1024})
    assert (answer.status_code, answer.get_json()["code"]) == (413, "PAYLOAD_TOO_LARGE")


def test_a_json_number_is_parsed_by_its_digits(agent: Agent, chains: dict[ChainName, EvmChain]) -> None:
    to = fresh_address()
    raw = f'{{"amount": 0.300001, "currency": "USDC", "chain": "base", "to": "{to}"}}'
    answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
    assert answer.status_code == 200, answer.get_json()
    assert chains[ChainName.BASE].balances(answer.get_json()["to"]).of(USDC).units == 300_001


def test_a_json_number_with_an_exponent_or_sign_is_refused_like_its_text(agent: Agent) -> None:
    for number in ("1e0", "15e-1", "1E2", "-1.0", "1.5e400"):
        raw = f'{{"amount": {number}, "currency": "USDC", "chain": "base", "to": "{RECIPIENT}"}}'
        answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
        assert refused_field(answer) == ["amount"], number
    assert_nothing_moved(agent)


def test_a_duplicate_field_is_refused_because_a_filter_may_have_read_the_other(agent: Agent) -> None:
    for field in ("amount", "to", "currency"):
        raw = json.dumps(VALID)[:-1] + f', "{field}": "2"}}'
        answer = agent.client.post(f"{agent.wallet_url}/transfer", data=raw, headers=agent.headers())
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT"), field
    assert_nothing_moved(agent)


def test_a_dry_run_does_not_use_up_the_idempotency_key(agent: Agent) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT}
    assert agent.post(f"{agent.wallet_url}/transfer", {**body, "dry_run": True}, Idempotency_Key="k").status_code == 200
    assert agent.post(f"{agent.wallet_url}/transfer", body, Idempotency_Key="k").get_json()["status"] == "confirmed"


@pytest.mark.parametrize("route", ["transfer", "withdraw"])
@pytest.mark.parametrize("spelling", ["dry_run", "dryRun"])
def test_a_repeated_dry_run_under_a_key_moves_nothing_in_either_spelling(
    agent: Agent, route: str, spelling: str
) -> None:
    body = {"amount": "1", "currency": "USDC", "chain": "base", "to": RECIPIENT, spelling: True}
    for _ in range(2):
        quoted = agent.post(f"{agent.wallet_url}/{route}", body, Idempotency_Key="k").get_json()
        assert quoted["dry_run"] is True
    assert agent.history() == []
    assert agent.spent_this_month() == 0


def test_limits_are_checked_in_order_and_report_the_remainder(agent: Agent) -> None:
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
    assert agent.spent_this_month() == 20


def test_a_recipient_not_on_the_allowlist_is_not_paid(agent: Agent) -> None:
    agent.controls(allowed_addresses=[RECIPIENT])
    refused = agent.move("1", "USDC", to=fresh_address())
    assert (refused.status_code, refused.get_json()["code"]) == (403, "ADDRESS_NOT_ALLOWED")
    assert agent.move("1", "USDC", to=RECIPIENT.lower()).status_code == 200


def test_an_exceeded_limit_is_reported_before_missing_funds(agent: Agent) -> None:
    answer = agent.move("51", "USDC", chain="ethereum")
    assert (answer.status_code, answer.get_json()["code"]) == (403, "PER_TX_LIMIT_EXCEEDED")
    assert agent.history() == []


def test_a_revert_by_the_contract_is_reported_and_nothing_is_sent(agent: Agent, base_node: EvmNode) -> None:
    blocked = fresh_address()
    blacklister, usdc_address = base_node.rpc("eth_accounts")[0], base_node.deployment.usdc
    data = "0xf9f92be4" + blocked[2:].rjust(64, "0")
    listing = {"from": blacklister, "to": usdc_address, "data": data}
    await_mined(base_node, base_node.rpc("eth_sendTransaction", listing))
    body = agent.move("1", "USDC", to=blocked).get_json()
    assert (body["code"], body["details"]["reason"]) == ("TRANSFER_FAILED", "simulation_failed")
    assert agent.spent_this_month() == 0


@pytest.mark.parametrize("how", ["transfer", "withdraw"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_nothing_is_paid_to_an_address_that_keeps_it(agent: Agent, how: str, *, dry_run: bool) -> None:
    for to in ("0x4200000000000000000000000000000000000006", "0x000000000000000000000000000000000000dEaD",
               "0x0000000000000000000000000000000000000001", "0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48"):  # fmt: skip
        for amount, token in (("0.01", "ETH"), ("1", "USDC")):
            answer = agent.move(amount, token, to=to, how=how, options={"dry_run": dry_run})
            assert answer.status_code == 400, (to, answer.text)
            assert "cannot be recovered" in answer.get_json()["details"]["fields"]["to"][0]
    assert agent.history() == []


def test_a_request_pays_no_more_for_the_network_than_it_allows(agent: Agent) -> None:
    quote = agent.move("1", "USDC", options={"dry_run": True}).get_json()
    assert quote["recipient_is"] is None
    fee = quote["network_fee_usd"]

    refused = agent.move("1", "USDC", options={"max_network_fee_usd": round(fee / 10, 9)})
    body = refused.get_json()
    assert (refused.status_code, body["details"]["reason"]) == (500, "network_fee_above_maximum")
    assert float(body["details"]["network_fee_usd"]) > float(body["details"]["max_network_fee_usd"])
    dry = agent.move("1", "USDC", options={"maxNetworkFeeUsd": round(fee / 10, 9), "dry_run": True})
    assert dry.get_json()["details"]["reason"] == "network_fee_above_maximum"
    assert agent.spent_this_month() == 0

    assert agent.move("1", "USDC", options={"max_network_fee_usd": round(fee * 3, 9)}).status_code == 200
    assert agent.move("1", "USDC", options={"max_network_fee_usd": -1}).status_code == 400


def test_a_refusal_that_recorded_nothing_is_decided_again_on_repetition(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=1)
    assert agent.move("2", "USDC", Idempotency_Key="k").status_code == 403
    agent.controls(per_tx_limit_usd=2)
    assert agent.move("2", "USDC", Idempotency_Key="k").status_code == 200


def test_a_recorded_failure_is_replayed_unchanged(agent: Agent, base_node: EvmNode) -> None:
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
    assert agent.spent_this_month() == 0


Faulty = tuple[Agent, FaultyChain]


@pytest.fixture
def faulty(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Faulty]:
    """A funded agent on a Base chain that can fail."""
    chain = FaultyChain(chains[ChainName.BASE])
    app = build_app(sqlite_url, chains={**chains, ChainName.BASE: chain}, settings={"confirmation_wait_seconds": "0.3"})
    with app.app_context():
        made = register(app.test_client())
        fund(base_node, made.address, eth=1, dollars=100)
        yield made, chain


@pytest.mark.parametrize("verb", ["broadcast", "outcomes"])
def test_an_error_after_signing_is_answered_as_pending_and_never_as_a_failure(verb: str, faulty: Faulty) -> None:
    agent, chain = faulty
    chain.raising(verb, "after", RuntimeError("boom"), times=100)
    answer = agent.move("2", "USDC", Idempotency_Key="k")
    body = answer.get_json()
    assert (answer.status_code, body["status"]) == (200, "pending")
    assert agent.transaction(body["transaction_id"])["tx_hash"] == body["tx_hash"]
    assert agent.move("2", "USDC", Idempotency_Key="k").get_json() == body
    assert len(agent.history()) == 1


def test_a_slow_node_does_not_delay_the_response_beyond_the_requested_wait(faulty: Faulty) -> None:
    agent, chain = faulty
    answered = threading.Event()
    chain.fail("outcomes", "before", lambda: answered.wait(20), times=5)
    started = time.monotonic()
    body = agent.move("2", "USDC", Prefer="wait=1").get_json()
    waited = time.monotonic() - started
    answered.set()
    assert body["status"] == "pending"
    assert waited < 10


def test_a_dry_run_deducts_pending_movements(
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
        with snapshot() as session:
            pending = session.scalars(select(Transaction)).one()
            taken = settlement.outflows(session, agent.address, ChainName.BASE, since_sequence=0)
            assert pending.fee_cap_units
            assert taken == ({USDC: 20_000_000}, pending.fee_cap_units)


def test_an_error_before_recording_leaves_nothing_behind(faulty: Faulty) -> None:
    agent, chain = faulty
    chain.raising("sign", "after", RuntimeError("boom with a secret"))
    answer = agent.move("2", "USDC", Idempotency_Key="k")
    assert (answer.status_code, answer.get_json()["code"]) == (500, "INTERNAL_ERROR")
    assert "boom" not in answer.get_data(as_text=True)
    assert agent.history() == []
    assert agent.spent_this_month() == 0
    assert agent.move("2", "USDC", Idempotency_Key="k").status_code == 200


def test_respond_async_returns_pending_immediately(faulty: Faulty) -> None:
    agent, chain = faulty
    body = agent.move("2", "USDC", Prefer="respond-async").get_json()
    assert body["status"] == "pending"
    assert "outcomes" not in chain.calls


def test_a_dry_run_names_known_recipients_that_look_like_this_one(agent: Agent) -> None:
    known = "0x51a5AaaA11112222333344445555666677775d9f"
    twin = "0x51a5bBbb99998888777766665555444433335d9f"

    def similar(to: str) -> list[str]:
        answer = agent.move("1", "USDC", to=to, options={"dry_run": True})
        assert answer.status_code == 200, answer.get_data(as_text=True)
        named: list[str] = answer.get_json()["similar_recipients"]
        return named

    assert similar(twin.lower()) == []
    assert agent.move("1", "USDC", to=known.lower()).get_json()["status"] == "confirmed"
    assert [each.lower() for each in similar(twin.lower())] == [known.lower()]
    assert similar(known.lower()) == []
    assert similar("0x51a5bBbb999988887777666655554444333305d9".lower()) == []


def test_a_dry_run_compares_with_the_allowlist_too(agent: Agent) -> None:
    known = "0x51a5aaaa11112222333344445555666677775d9f"
    twin = "0x51a5bbbb99998888777766665555444433335d9f"
    agent.controls(allowed_addresses=[known])
    answer = agent.move("1", "USDC", to=twin, options={"dry_run": True})
    assert answer.get_json()["code"] == "ADDRESS_NOT_ALLOWED"
    agent.controls(allowed_addresses=[known, twin])
    answer = agent.move("1", "USDC", to=twin, options={"dry_run": True})
    assert answer.get_json()["similar_recipients"] == []
