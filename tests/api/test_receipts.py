"""Receipts over the API: of payments, records and refusals, and the page that checks one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from app import signing
from app.adapters.evm.chain import EvmChain
from app.approvals import service as approvals
from app.approvals.models import ApprovalStatus
from app.approvals.service import OwnerMethod
from app.catalog.models import PayoutStatus
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import unit_of_work
from app.ports.errors import Unreachable
from app.receipts import routes as receipts
from app.shopping.models import PurchaseStatus
from app.wallets.core.lifecycle import MovementStatus
from purser import verify_receipt
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import ether, evm_chain, fund
from tests.support.evm import sent as pay
from tests.support.faults import FaultyChain
from tests.support.gateway import SEARCH
from tests.support.mpp import answered
from tests.support.owners import person
from tests.support.payment_scenes import held_shop
from tests.support.payments import PRICE, EvmPayer, Shop, by_hash, decoded, person_with, shop
from tests.support.receipts import SERVICE, statement_of

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
TERMS = ("scheme", "network", "asset", "payTo", "amount")


@pytest.fixture
def open_shop(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Shop]:
    with shop(build_app, sqlite_url, chains) as made:
        base_node.fund_eth(made.settler(BASE), ether(1))
        made.expire_capacity()
        made.upstream.behave = lambda exchange: exchange.json({"results": []})
        yield made


@pytest.fixture
def agent(funded_agent: Agent) -> Agent:
    return funded_agent


def verified(receipt: str, kind: str, client: FlaskClient) -> dict[str, Any]:
    """Return what a receipt states, as the package for clients verifies it with the published keys."""
    found = verify_receipt(receipt, client.get("/.well-known/jwks.json").get_json(), SERVICE)
    assert found.type == kind
    return found.statement


def receipt_of(answer: TestResponse) -> str | None:
    """Return the receipt of a payment in its response."""
    if (report := answer.headers.get("PAYMENT-RESPONSE")) is None:
        return answer.headers.get("X-Receipt")
    extension = decoded(report).get("extensions", {}).get("offer-receipt")
    signed: str | None = extension and extension["info"]["receipt"]["signature"]
    return signed


def receipt(agent: Agent, record_id: str) -> dict[str, Any]:
    answer = agent.get(f"/v1/receipts/{record_id}")
    assert answer.status_code == 200, answer.get_data(as_text=True)
    body: dict[str, Any] = answer.get_json()
    return verified(body["receipt"], "purser-record+jws", agent.client)


def test_the_terms_that_are_signed_are_those_that_are_offered(open_shop: Shop) -> None:
    required = decoded(open_shop.ask().headers["PAYMENT-REQUIRED"])
    offers = required["extensions"]["offer-receipt"]["info"]["offers"]
    assert [each["acceptIndex"] for each in offers] == [*range(len(required["accepts"]))] == [0]
    for offer, accepted in zip(offers, required["accepts"], strict=True):
        stated = verified(offer["signature"], "x402-offer+jws", open_shop.app.test_client())
        assert {name: stated[name] for name in TERMS} == {name: accepted[name] for name in TERMS}
        assert (stated["version"], stated["resourceUrl"]) == (1, required["resource"]["url"])
        assert set(stated) == {"version", "resourceUrl", "validUntil", *TERMS}
        assert offer["format"] == "jws"


def test_a_settled_and_served_payment_has_a_receipt(open_shop: Shop, base_node: EvmNode) -> None:
    payer = EvmPayer(base_node)
    unpaid = open_shop.ask()
    assert receipt_of(unpaid) is None
    answer = open_shop.ask(payer.pays(unpaid))
    report, signed = decoded(answer.headers["PAYMENT-RESPONSE"]), receipt_of(answer)
    stated = verified(signed or "", "x402-receipt+jws", open_shop.app.test_client())
    assert {name: stated[name] for name in ("payer", "network", "transaction")} == {
        name: report[name] for name in ("payer", "network", "transaction")
    }
    assert stated["resourceUrl"] == decoded(unpaid.headers["PAYMENT-REQUIRED"])["resource"]["url"]
    assert stated["transaction"] == open_shop.payments()[0].tx_hash


def test_a_payment_by_hash_has_a_receipt_too(open_shop: Shop, base_node: EvmNode) -> None:
    paying = person_with(base_node)
    done = pay(open_shop.app.state.ports.chains[BASE], paying, open_shop.recipient(BASE), PRICE, token=USDC)
    early = open_shop.ask(by_hash(done.tx_hash, BASE))
    refused = verified(early.headers["X-Receipt"], "purser-refusal+jws", open_shop.app.test_client())
    assert refused["refusal"]["details"]["reason"] == "not_final_yet"
    base_node.mine(6)
    answer = open_shop.ask(by_hash(done.tx_hash, BASE))
    stated = verified(answer.headers["X-Receipt"], "x402-receipt+jws", open_shop.app.test_client())
    assert (stated["transaction"], stated["payer"].lower()) == (done.tx_hash, paying.address.lower())


def test_a_call_that_failed_has_no_receipt_and_its_repetition_has(open_shop: Shop, base_node: EvmNode) -> None:
    headers = EvmPayer(base_node).pays(open_shop.ask())
    open_shop.upstream.behave = lambda exchange: exchange.json({"error": "later"}, 503)
    failed = open_shop.ask(headers)
    assert (failed.status_code, receipt_of(failed)) == (503, None)
    open_shop.upstream.behave = lambda exchange: exchange.reset()
    broken = open_shop.ask(headers)
    assert (broken.status_code, receipt_of(broken), broken.headers.get("X-Receipt")) == (502, None, None)
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []})
    assert receipt_of(open_shop.ask(headers)) is not None


def test_a_receipt_that_an_upstream_sends_is_not_relayed(open_shop: Shop, base_node: EvmNode) -> None:
    """It may be one of this service, of another payment: relayed, it would pass for one of this call."""
    foreign = signing.sign_own(signing.Statement.RECORD, kind="transaction", record={}) or ""
    headers = [("x-Receipt", foreign), ("Payment-Response", foreign), ("payment-receipt", foreign)]
    open_shop.upstream.behave = lambda exchange: exchange.json({"results": []}, 200, *headers)
    answer = open_shop.ask(EvmPayer(base_node).pays(open_shop.ask()))
    assert (answer.status_code, foreign in str(answer.headers)) == (200, False)


def test_a_payment_by_mpp_has_a_receipt_and_a_refused_one_is_named(open_shop: Shop, base_node: EvmNode) -> None:
    unpaid, client = open_shop.ask(), open_shop.app.test_client()
    headers = answered(EvmPayer(base_node), unpaid)
    stated = verified(open_shop.ask(headers).headers["X-Receipt"], "x402-receipt+jws", client)
    assert stated["transaction"] == open_shop.payments()[0].tx_hash
    again = open_shop.ask(headers, path=f"{SEARCH}&again=1")
    refused = verified(again.headers["X-Receipt"], "purser-refusal+jws", client)
    assert refused["refusal"]["code"] == "PAYMENT_ALREADY_USED"
    assert refused["request"]["payment_sha256"] == hashlib.sha256(headers["Authorization"].encode()).hexdigest()


def test_a_key_is_not_named_as_the_payment_of_a_refused_request(open_shop: Shop) -> None:
    agent = register(open_shop.app.test_client())
    presented = {"X-Payment": "0x" + "1" * 64, "Authorization": f"Bearer {agent.key}"}
    for headers in (presented, {"X-Payment": "0x" + "1" * 64}):
        answer = open_shop.ask(headers)
        if signed := answer.headers.get("X-Receipt"):
            named = statement_of(signed)["request"]["payment_sha256"]
            assert named == hashlib.sha256(presented["X-Payment"].encode()).hexdigest()


@pytest.mark.parametrize("statuses", [MovementStatus, ApprovalStatus, PurchaseStatus, PayoutStatus])
def test_no_status_that_may_change_or_that_nobody_knows_is_signed(statuses: type[StrEnum]) -> None:
    unsigned = {
        "pending", "awaiting", "approved", "queued", "running", "submitting", "unknown", "action_required", "preview",
    }  # fmt: skip
    for each in statuses:
        assert (each.value in receipts._CERTAIN) is (each.value not in unsigned), each


def test_a_payment_has_a_receipt_only_once_it_is_settled(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> None:
    with held_shop(build_app, sqlite_url, own_base_node, evm_chain(own_base_node)) as scene:
        headers = EvmPayer(own_base_node).pays(scene.shop.ask())
        scene.hold()
        pending = scene.shop.ask(headers)
        assert (pending.status_code, pending.get_json()["code"]) == (503, "PAYMENT_PENDING")
        assert (receipt_of(pending), pending.headers.get("X-Receipt")) == (None, None)
        scene.land()
        assert receipt_of(scene.shop.ask(headers)) is not None


def test_a_refused_payment_is_proven_with_the_payment_that_was_refused(open_shop: Shop, base_node: EvmNode) -> None:
    headers = EvmPayer(base_node).pays(open_shop.ask(), value=str(PRICE - 1))
    answer = open_shop.ask(headers)
    body = answer.get_json()
    stated = verified(answer.headers["X-Receipt"], "purser-refusal+jws", open_shop.app.test_client())
    assert stated["refusal"] == {name: body[name] for name in ("error", "code", "details", "request_id")}
    [presented] = [value for name, value in headers.items() if name.upper() == "PAYMENT-SIGNATURE"]
    assert stated["request"]["payment_sha256"] == hashlib.sha256(presented.encode()).hexdigest()


def test_a_key_in_the_path_is_in_no_receipt(open_shop: Shop) -> None:
    key = "ak_" + "a" * 40
    answer = open_shop.ask({"X-Payment": "0x" + "1" * 64}, path=f"/v1/gateway/brave/web/search/{key}?q=a")
    assert key not in str([*answer.headers.items()])
    signed = answer.headers.get("X-Receipt")
    assert signed is None or key not in str(statement_of(signed))


def test_an_exceeded_limit_is_proven_as_it_was_answered(agent: Agent) -> None:
    agent.controls(per_tx_limit_usd=5)
    answer = agent.move("6", "USDC")
    body = answer.get_json()
    stated = verified(answer.headers["X-Receipt"], "purser-refusal+jws", agent.client)
    assert stated["refusal"] == {name: body[name] for name in ("error", "code", "details", "request_id")}
    assert (stated["refusal"]["code"], stated["agent_id"]) == ("PER_TX_LIMIT_EXCEEDED", agent.id)
    asked = stated["request"]
    assert (asked["method"], asked["path"]) == ("POST", f"{agent.wallet_url}/transfer")
    assert agent.key not in str(stated)
    assert agent.history() == []


def test_other_errors_have_no_receipt(agent: Agent) -> None:
    for answer in (agent.move("-1", "USDC"), agent.move("1000", "USDC", chain="base"), agent.get("/v1/receipts/x")):
        assert answer.status_code >= 400
        assert "X-Receipt" not in answer.headers or answer.get_json()["code"].endswith("LIMIT_EXCEEDED")


def test_a_record_is_signed_as_the_api_shows_it(agent: Agent) -> None:
    done = agent.move("1", "USDC").get_json()
    shown = agent.transaction(done["transaction_id"])
    stated = receipt(agent, done["transaction_id"])
    assert (stated["kind"], shown["status"]) == ("transaction", "confirmed")
    assert stated["record"] == {name: shown[name] for name in stated["record"]}
    assert set(shown) - set(stated["record"]) == {"explorer_url", "events"}


def test_a_record_without_a_certain_outcome_is_not_signed(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> None:
    chain = FaultyChain(chains[BASE])
    app = build_app(sqlite_url, chains={**chains, BASE: chain}, settings={"confirmation_wait_seconds": "0.3"})
    with app.app_context():
        agent = register(app.test_client())
        fund(base_node, agent.address, eth=1, dollars=100)
        chain.raising("broadcast", "before", Unreachable("node_down"), times=100)
        sent = agent.move("1", "USDC").get_json()
        assert sent["status"] == "pending"
        answer = agent.get(f"/v1/receipts/{sent['transaction_id']}")
        assert (answer.status_code, answer.get_json()["code"]) == (409, "TRANSACTION_IN_PROGRESS")


def test_an_undecided_approval_is_not_signed(agent: Agent) -> None:
    agent.controls(approval_threshold_usd=10)
    awaiting = agent.move("12.5", "USDC").get_json()["approval"]
    assert agent.get(f"/v1/receipts/{awaiting['id']}").status_code == 409


def test_a_payment_that_the_owner_refused_is_proven_with_the_reason(agent: Agent) -> None:
    agent.controls(approval_threshold_usd=10)
    asked = agent.move("12.5", "USDC").get_json()["approval"]
    waiting, method = approvals.get(asked["id"]), OwnerMethod.OWNER_KEY
    with unit_of_work() as session:
        approvals.decide(session, waiting, is_approved=False, method=method, answer="Too dear")
    shown = agent.get(f"/v1/approvals/{asked['id']}").get_json()
    stated = receipt(agent, asked["id"])
    assert (stated["kind"], stated["record"]["status"], stated["record"]["answer"]) == (
        "approval",
        "rejected",
        "Too dear",
    )
    assert stated["record"] == {name: shown[name] for name in stated["record"]}
    # The address of the owner's page, and how the owner is reached, are not for others.
    assert set(shown) - set(stated["record"]) == {"url", "notified", "notices"}


def test_nobody_gets_a_receipt_of_what_they_may_not_read(agent: Agent) -> None:
    done = agent.move("1", "USDC").get_json()
    other = register(agent.client)
    unknown = other.get("/v1/receipts/00000000-0000-4000-8000-000000000000").get_json()
    found = other.get(f"/v1/receipts/{done['transaction_id']}")
    assert found.status_code == 404
    assert {**found.get_json(), "request_id": ""} == {**unknown, "request_id": ""}
    assert agent.client.get(f"/v1/receipts/{done['transaction_id']}").status_code == 401


def test_the_page_shows_what_was_signed_and_nothing_else(agent: Agent) -> None:
    signed = agent.get(f"/v1/receipts/{agent.move('1', 'USDC').get_json()['transaction_id']}").get_json()["receipt"]
    page = agent.client.post("/receipts", data={"receipt": f" {signed[:50]}\n{signed[50:]} "})
    text = page.get_data(as_text=True)
    assert (page.status_code, page.headers["Cache-Control"]) == (200, "no-store")
    assert "signed by this service" in text
    assert "<script" not in text
    assert "script-src" not in page.headers["Content-Security-Policy"]
    altered = agent.client.post("/receipts", data={"receipt": signed[:-6] + "AAAAAA"}).get_data(as_text=True)
    assert "Not signed by this service" in altered
    assert "signed by this service</p>" not in altered.replace("Not signed by this service</p>", "")
    assert agent.client.get("/receipts").status_code == 200


def test_texts_of_others_in_a_receipt_are_text_on_the_page(agent: Agent) -> None:
    hostile = '</code></pre><script>alert(1)</script><img src=x onerror="alert(1)">'
    signed = signing.sign_own(signing.Statement.RECORD, kind="approval", record={"answer": hostile})
    for shown in (signed, hostile):
        text = agent.client.post("/receipts", data={"receipt": shown}).get_data(as_text=True)
        assert "<script" not in text
        assert "<img" not in text


def test_a_large_form_is_refused_before_it_is_read(agent: Agent) -> None:
    assert agent.client.post("/receipts", data={"receipt": "a" * 70_000}).status_code == 413
    assert agent.client.post("/receipts", data={"receipt": "a" * 20_000}).status_code == 200


def test_the_owner_has_the_receipt_of_a_payment(agent: Agent) -> None:
    done = agent.move("1", "USDC").get_json()
    owner = person(agent.client.application)
    owner.claim(agent.post("/v1/agents/claim-code").get_json())
    page = owner.client.get(f"/owner/agents/{agent.id}/activity/{done['transaction_id']}").get_data(as_text=True)
    signed = page.partition("<summary>Show the receipt</summary><p><code>")[2].partition("<")[0]
    assert verified(signed, "purser-record+jws", agent.client)["record"]["id"] == done["transaction_id"]
