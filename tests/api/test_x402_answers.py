"""What a payment to a web service bought, and what a request without one costs and reveals."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.buying import service
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.state import app_state
from app.usage.service import MeteredUsage, UsageCall, charge
from app.version import VERSION
from sandbox.evm import EvmNode
from tests.support.buyers import Buyer, buyer_on, refused
from tests.support.drivers import evm_driver
from tests.support.mcp import call
from tests.support.sellers import ScriptedSeller, scripted_seller, uses_of
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain


@pytest.fixture
def buyer(build_app: Callable[..., Flask], sqlite_url: str, base_node: EvmNode) -> Iterator[Buyer]:
    with buyer_on(build_app, sqlite_url, evm_driver(base_node)) as made:
        yield made


@pytest.fixture
def seller(base_node: EvmNode) -> Iterator[ScriptedSeller]:
    with scripted_seller(base_node) as made:
        yield made


def settles_and_answers(status: int) -> Callable[[ScriptedSeller, Exchange, Mapping[str, Any]], None]:
    def behave(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        shop.settle(payment)
        exchange.json({"effect": "rejected"}, status)

    return behave


def usage(buyer: Buyer) -> Any:
    answer: TestResponse = buyer.agent.get("/v1/usage")
    return answer.get_json()


@pytest.mark.parametrize("status", [400, 404, 422, 429, 500, 503])
def test_a_paid_refusal_is_stored_and_its_payment_not_sent_again(
    status: int, buyer: Buyer, seller: ScriptedSeller
) -> None:
    seller.behave = settles_and_answers(status)
    first = buyer.fetch(seller.url + "/report", key="once")
    body = first.get_json()
    assert (body["status"], body["payment"]["state"]) == (status, "paid")
    assert json.loads(body["body"]) == {"effect": "rejected"}
    again = buyer.fetch(seller.url + "/report", key="once")
    assert (again.get_json(), again.headers["Idempotent-Replayed"]) == (body, "true")
    assert (len(seller.headers), uses_of(buyer.node, buyer.agent.address)) == (1, 1)
    [kept] = buyer.get("/x402/purchases")["purchases"]
    stored = buyer.get(f"/x402/purchases/{kept['transaction_id']}")
    assert (stored["status"], stored["body"]) == (status, body["body"])


def test_a_refusal_that_was_not_paid_for_is_not_what_the_payment_bought(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.behave = lambda _shop, exchange, _payment: exchange.json({"error": "later"}, 503)
    first = buyer.fetch(seller.url + "/report", key="once", wait=1).get_json()
    assert (first["status"], first["payment"]["state"]) == (503, "pending")
    stored = buyer.get(f"/x402/purchases/{first['payment']['transaction_id']}")
    assert (stored["status"], stored["body"]) == (None, None)
    seller.behave = settles_and_answers(200)
    second = buyer.fetch(seller.url + "/report", key="once").get_json()
    assert (second["status"], second["payment"]["state"]) == (200, "paid")
    assert buyer.fetch(seller.url + "/report", key="once").get_json() == second
    assert (len(seller.headers), len(set(seller.headers))) == (2, 1)


def test_a_refusal_that_is_settled_later_is_returned_without_asking_again(buyer: Buyer, seller: ScriptedSeller) -> None:
    kept: list[Mapping[str, Any]] = []

    def refuse(_shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        kept.append(payment)
        exchange.json({"effect": "rejected"}, 409)

    seller.behave = refuse
    assert buyer.payment(seller.url + "/report", key="once", wait=1)["state"] == "pending"
    seller.settle(kept[0])
    again = buyer.fetch(seller.url + "/report", key="once").get_json()
    assert (again["status"], again["payment"]["state"]) == (409, "paid")
    assert len(seller.headers) == 1


@pytest.mark.parametrize(
    "resource",
    ["http://weather-api:8080/report", "http://10.0.3.7:3000/report", "http://localhost:4021/report",
     "http://[::1]:3000/report", "https://shop.internal/report", "http://web.shop.svc.cluster.local/report"],
)  # fmt: skip
def test_a_seller_that_states_its_internal_host_is_paid(resource: str, buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.terms["resource"] = {"url": resource}
    assert buyer.payment(seller.url + "/report")["state"] == "paid"


def test_terms_of_another_public_host_are_refused_with_the_reason_in_the_sentence(
    buyer: Buyer, seller: ScriptedSeller
) -> None:
    for stated in ("https://other.example.com/report", "https://93.184.216.34/report"):
        seller.terms["resource"] = {"url": stated}
        body = refused(buyer.fetch(seller.url + "/report"), "TERMS_NOT_SUPPORTED")
        assert "resource of another host" in body["error"]
        assert body["details"]["offers"][0]["reason"] == "resource_of_another_host"
    assert seller.headers == []


def test_terms_that_were_encoded_by_btoa_are_read(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.terms["resource"]["description"] = "Café"
    text = base64.b64encode(json.dumps(seller.terms, ensure_ascii=False).encode("latin-1")).decode()

    def ask(exchange: Exchange) -> None:
        if exchange.asked.header("payment-signature") is None:
            exchange.json({}, 402, ("PAYMENT-REQUIRED", text))
        else:
            seller.answer(exchange)

    seller.upstream.behave = ask
    assert buyer.payment(seller.url + "/report")["state"] == "paid"


def test_a_request_without_a_payment_is_charged_and_logged_with_its_host(buyer: Buyer, seller: ScriptedSeller) -> None:
    before = usage(buyer)
    seller.upstream.behave = lambda exchange: exchange.json({"echo": True})
    answers = [buyer.fetch(seller.url + "/echo", key=str(n)) for n in range(2)]
    answers.append(buyer.fetch(seller.url + "/echo", dry_run=True))
    assert [each.status_code for each in answers] == [200, 200, 200]
    seen = usage(buyer)
    assert seen["pagination"]["total"] == before["pagination"]["total"] + 3
    row = seen["logs"][0]
    assert (row["provider"], row["model"], row["cost_usd"]) == ("x402", "127.0.0.1", 0.001)
    seller.upstream.behave = seller.answer
    assert buyer.payment(seller.url + "/report", key="paid")["state"] == "paid"
    assert usage(buyer)["pagination"]["total"] == seen["pagination"]["total"]


def test_a_wallet_without_credits_pays_sellers_and_sends_little_else(buyer: Buyer, seller: ScriptedSeller) -> None:
    with unit_of_work() as session:
        spent = UsageCall(new_id(), "test", "x")
        charge(session, buyer.agent.id, spent, charge_id=new_id(), metered=MeteredUsage(9_999_500_000))
    before = usage(buyer)["pagination"]["total"]
    for number in range(service.MAX_UNCHARGED + 1):
        paid = buyer.fetch(seller.url + f"/report?{number}", key=str(number), max_amount_usd=0.02)
        assert paid.get_json()["payment"]["state"] == "paid"
    for _ in range(service.MAX_UNCHARGED):
        assert buyer.fetch(seller.url + "/report", dry_run=True).status_code == 200
    asked = len(seller.upstream.asked)
    for body in ({"dry_run": True}, {}):
        refused(buyer.fetch(seller.url + "/other", **body), "INSUFFICIENT_CREDITS")
    assert len(seller.upstream.asked) == asked
    assert usage(buyer)["pagination"]["total"] == before


def test_the_service_says_who_sends_a_request_and_passes_on_no_forged_origin(
    buyer: Buyer, seller: ScriptedSeller
) -> None:
    forged = {
        "User-Agent": "sqlmap", "X-Forwarded-For": "1.2.3.4", "x-forwarded-host": "victim.example",
        "Forwarded": "for=1.2.3.4",
        "X-Real-IP": "1.2.3.4", "CF-Connecting-IP": "1.2.3.4", "True-Client-IP": "1.2.3.4", "Via": "1.1 x",
        "X-Own": "kept", "Accept": "text/csv",
    }  # fmt: skip
    buyer.fetch(seller.url + "/report", headers=forged)
    for asked in seller.upstream.asked:
        assert asked.header("user-agent") == f"purser/{VERSION} (+{app_state().settings.public_url})"
        assert (asked.header("x-own"), asked.header("accept")) == ("kept", "text/csv")
        assert [asked.header(name) for name in forged if name not in ("User-Agent", "X-Own", "Accept")] == [None] * 7
    assert len(seller.upstream.asked) == 2


def test_an_agent_tries_a_bounded_number_of_hosts_a_day_without_paying_them(
    buyer: Buyer, seller: ScriptedSeller
) -> None:
    limiter = app_state().rate_limiter
    assert buyer.fetch(seller.url + "/report").status_code == 200
    limit = f"{service.MAX_HOSTS} per day"
    for _ in range(service.MAX_HOSTS - 1):
        limiter.count(limit, "fetched-hosts", buyer.agent.id)
    elsewhere = seller.url.replace("127.0.0.1", "localhost")
    refusal = buyer.fetch(elsewhere + "/report")
    expected = f"Today this agent has sent requests to {service.MAX_HOSTS} hosts"
    assert refused(refusal, "RATE_LIMITED")["error"].startswith(expected)
    assert int(refusal.headers["Retry-After"]) > 3600
    # A host that was seen today, and one that was paid, is not another one.
    assert buyer.fetch(seller.url + "/other").status_code == 200


def test_another_request_without_a_key_is_refused_in_words_to_act_on(buyer: Buyer, seller: ScriptedSeller) -> None:
    assert buyer.fetch(seller.url + "/report").status_code == 200
    for changed in ({"max_amount_usd": 0.04}, {"headers": {"X-Own": "1"}}):
        body = refused(buyer.fetch(seller.url + "/report", **changed), "IDEMPOTENCY_CONFLICT")
        assert "ten minutes" in body["error"]
        assert "Idempotency-Key header of your own (request_id in MCP)" in body["error"]
        order = {"wallet_id": buyer.agent.wallet_id, "url": seller.url + "/report", "max_amount_usd": 0.05, **changed}
        result = call(buyer.agent.client, "fetch_and_pay", buyer.agent.key, **order)
        assert "request_id in MCP" in result["structuredContent"]["error"]
    again = buyer.fetch(seller.url + "/report", headers={}, method="GET", body=None)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert uses_of(buyer.node, buyer.agent.address) == 1
