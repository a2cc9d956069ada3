"""Payments to web services: paid once, under the limits, whatever the seller does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import time_machine
from flask import Flask
from werkzeug.test import TestResponse

from app.buying.records import PinnedPayee, ServicePurchase
from app.core import clock
from app.core.chains import ChainName
from app.db.tables import count
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.platform import personal_data
from app.spending import accounts as spending_accounts
from app.wallets.transactions import open_transactions, relayed
from sandbox.evm import EvmNode
from tests.support.agents import register
from tests.support.buyers import Buyer, buyer_on, refused, seller_on
from tests.support.chains import ether, fund
from tests.support.drivers import EvmDriver, evm_driver
from tests.support.evm import proxy, spoil
from tests.support.mcp import call
from tests.support.owners import person
from tests.support.payments import SEARCH, decoded, shop
from tests.support.sellers import (
    CENT,
    OTHER_PAYEE,
    PAYEE,
    ScriptedSeller,
    published_seller,
    scripted_seller,
    serve,
    served,
    uses_of,
)
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
_own_node = pytest.mark.parametrize("driver", ["own_base_node"], indirect=True)


@pytest.fixture
def buyer(build_app: Callable[..., Flask], sqlite_url: str, driver: EvmDriver) -> Iterator[Buyer]:
    with buyer_on(build_app, sqlite_url, driver) as made:
        yield made


@pytest.fixture
def seller(driver: EvmDriver) -> Iterator[ScriptedSeller]:
    with seller_on(driver) as made:
        yield made


def test_a_published_seller_is_paid_once_and_its_answer_returned(buyer: Buyer) -> None:
    with published_seller(buyer.node) as shop:
        answer = buyer.fetch(shop.url + "/report", key="once")
        body = answer.get_json()
        assert answer.status_code == 200, body
        assert (body["status"], body["body"]) == (200, '{"report":"sunny"}\n')
        payment = body["payment"]
        assert (payment["state"], payment["protocol"], payment["amount"]) == ("paid", "x402/2", "0.01")
        assert payment["pay_to"] == PAYEE
        again = buyer.fetch(shop.url + "/report", key="once")
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.get_json() == body
        assert (shop.served, uses_of(buyer.node, buyer.agent.address)) == (["report"], 1)
        assert buyer.payment(shop.url + "/free") is None
    [row] = buyer.agent.history(type="payment")
    assert (row["kind"], row["status"], row["tx_hash"]) == ("x402", "confirmed", payment["tx_hash"])
    assert (row["previous_hashes"], buyer.spent()) == ([], 0.01)
    [bought] = buyer.get("/x402/purchases")["purchases"]
    assert (bought["url"], bought["amount"]) == (shop.url + "/report", "0.01")
    whole = buyer.get(f"/x402/purchases/{bought['transaction_id']}")
    assert (whole["body"], whole["payment"]) == (body["body"], payment)
    assert (whole["url"], whole["method"]) == (bought["url"], "GET")
    other = register(buyer.app.test_client())
    for path in (
        f"{other.wallet_url}/x402/purchases/{bought['transaction_id']}",
        f"{other.wallet_url}/x402/purchases/1",
    ):
        assert refused(other.get(path), "NOT_FOUND")


def test_terms_of_version_1_in_the_body_are_paid(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with (
        EvmNode("base", network_ids="mainnet") as node,
        buyer_on(build_app, sqlite_url, evm_driver(node)) as buyer,
        scripted_seller(node) as seller,
    ):
        offer = seller.offer()
        offer |= {"network": "base", "maxAmountRequired": offer.pop("amount"), "resource": seller.url + "/report"}
        seller.terms = {"x402Version": 1, "error": "payment required", "accepts": [offer]}
        seller.in_body = True
        body = buyer.fetch(seller.url + "/report").get_json()
        assert (body["status"], body["payment"]["state"]) == (200, "paid"), body
        assert (body["payment"]["protocol"], body["payment"]["network"]) == ("x402/1", "base")
        sent = decoded(seller.headers[0])
        assert (sent["x402Version"], sent["scheme"], sent["network"]) == (1, "exact", "base")
        assert uses_of(node, buyer.agent.address) == 1


def test_terms_of_version_2_in_the_body_are_paid_and_its_extensions_echoed(
    buyer: Buyer, seller: ScriptedSeller
) -> None:
    seller.in_body = True
    seller.terms["extensions"] = {"payment-identifier": {"info": {"required": True}, "schema": {}}, "other": {"a": 1}}
    body = buyer.fetch(seller.url + "/report").get_json()
    assert body["payment"]["state"] == "paid"
    sent = decoded(seller.headers[0])
    identifier = sent["extensions"]["payment-identifier"]["info"]
    assert identifier == {"required": True, "id": body["payment"]["transaction_id"]}
    assert (sent["extensions"]["other"], sent["accepted"]) == ({"a": 1}, seller.offer())


def test_a_dry_run_names_price_and_payee_and_signs_nothing(buyer: Buyer, seller: ScriptedSeller) -> None:
    quote = buyer.fetch(seller.url + "/report", dry_run=True).get_json()
    assert (quote["payment_required"], quote["amount"], quote["amount_usd"]) == (True, "0.01", 0.01)
    assert (quote["pay_to"], quote["chain"], quote["network"]) == (PAYEE, "base", seller.network)
    assert (seller.headers, buyer.agent.history(), buyer.spent()) == ([], [], 0)


def test_a_seller_that_asks_again_after_settling_gets_the_same_bytes(buyer: Buyer, seller: ScriptedSeller) -> None:
    def settle_and_deny(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        if uses_of(shop.node, buyer.agent.address) == 0:
            shop.settle(payment)
        shop.offer().update(amount=str(50 * CENT), payTo=OTHER_PAYEE)
        shop.ask_payment(exchange)

    seller.behave = settle_and_deny
    first = buyer.fetch(seller.url + "/report", key="once").get_json()
    assert (first["status"], first["payment"]["state"]) == (402, "pending")
    buyer.run_workers()
    second = buyer.fetch(seller.url + "/report", key="once").get_json()
    assert (second["status"], second["payment"]["state"]) == (402, "paid")
    assert len(set(seller.headers)) == 1
    assert (uses_of(buyer.node, buyer.agent.address), buyer.spent()) == (1, 0.01)


def test_limits_domains_and_a_freeze_apply_before_anything_is_signed(buyer: Buyer, seller: ScriptedSeller) -> None:
    url = seller.url + "/report"
    asked = len(seller.upstream.asked)
    buyer.agent.controls(allowed_domains=["shop.example.com"])
    refused(buyer.fetch(url), "DOMAIN_NOT_ALLOWED")
    assert len(seller.upstream.asked) == asked
    buyer.agent.controls(allowed_domains=[], allowed_addresses=[OTHER_PAYEE])
    refused(buyer.fetch(url), "ADDRESS_NOT_ALLOWED")
    buyer.agent.controls(allowed_addresses=[PAYEE], per_tx_limit_usd=0.005)
    refused(buyer.fetch(url), "PER_TX_LIMIT_EXCEEDED")
    buyer.agent.controls(per_tx_limit_usd=1, daily_limit_usd=0.015)
    assert buyer.payment(url, key="a")["state"] == "paid"
    refused(buyer.fetch(url, key="b"), "DAILY_LIMIT_EXCEEDED")
    too_dear = refused(buyer.fetch(url, key="c", max_amount_usd=0.005), "PER_TX_LIMIT_EXCEEDED")
    assert too_dear["details"] == {"rule": "max_amount_usd", "limit_usd": 0.005, "requested_usd": 0.01}
    assert len(seller.headers) == 1


def test_stored_bytes_are_not_sent_again_after_a_freeze(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.behave = lambda _shop, exchange, _payment: exchange.hang_up()
    url = seller.url + "/report"
    assert buyer.payment(url, key="once", wait=1)["state"] == "pending"
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, buyer.agent.id, frozen=True)
    refused(buyer.fetch(url, key="once"), "WALLET_FROZEN")
    assert len(seller.headers) == 1


def test_terms_that_would_be_stored_at_any_length_are_refused(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.in_body = True
    seller.terms["extensions"] = {"other": "A" * 20_000}
    refused(buyer.fetch(seller.url + "/report"), "TERMS_NOT_SUPPORTED")
    assert seller.headers == []


def test_a_changed_payee_is_refused_until_it_is_allowed(buyer: Buyer, seller: ScriptedSeller) -> None:
    url = seller.url + "/report"
    assert buyer.payment(url, key="a")["state"] == "paid"
    seller.offer()["payTo"] = OTHER_PAYEE
    details = refused(buyer.fetch(url, key="b"), "PAYEE_CHANGED")["details"]
    assert details == {"domain": "127.0.0.1", "chain": "base", "stored": PAYEE, "requested": OTHER_PAYEE}
    [payee] = buyer.get("/x402/payees")["payees"]
    assert (payee["domain"], payee["address"]) == ("127.0.0.1", PAYEE)
    assert buyer.agent.delete(f"{buyer.agent.wallet_url}/x402/payees/127.0.0.1").status_code == 200
    assert buyer.payment(url, key="b")["pay_to"] == OTHER_PAYEE


def test_a_header_of_a_megabyte_is_refused(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.upstream.behave = lambda exchange: exchange.json({}, 402, ("PAYMENT-REQUIRED", "A" * 2**20))
    refused(buyer.fetch(seller.url + "/report"), "UPSTREAM_ERROR")


def test_a_redirect_is_returned_and_not_followed(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.upstream.behave = lambda exchange: exchange.answer(b"", 302, ("Location", "http://127.0.0.1:1/"))
    body = buyer.fetch(seller.url + "/report").get_json()
    assert (body["status"], body["headers"]["location"], body["payment"]) == (302, "http://127.0.0.1:1/", None)
    assert len(seller.upstream.asked) == 1


def test_an_endless_answer_is_cut_off_and_counts_as_the_answer(buyer: Buyer, seller: ScriptedSeller) -> None:
    def stream(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        shop.settle(payment)
        exchange.start_stream("text/plain")
        while True:
            exchange.chunk(b"x" * 65_536)

    seller.behave = stream
    body = buyer.fetch(seller.url + "/report", key="once").get_json()
    assert (body["status"], len(body["body"]), body["truncated"]) == (200, 2**20, True)
    assert buyer.fetch(seller.url + "/report", key="once").get_json() == body
    assert len(seller.headers) == 1


def test_an_answer_that_breaks_off_is_returned_and_requested_again_with_the_same_bytes(
    buyer: Buyer, seller: ScriptedSeller
) -> None:
    def break_off(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        if uses_of(shop.node, buyer.agent.address):
            exchange.json({"report": "sunny"})
        else:
            shop.settle(payment)
            exchange.head(200, ("Content-Length", 1000))
            exchange.send(b"{")
            exchange.hang_up()

    seller.behave = break_off
    body = buyer.fetch(seller.url + "/report", key="once").get_json()
    assert (body["body"], body["truncated"], body["payment"]["state"]) == ("{", True, "paid")
    assert buyer.fetch(seller.url + "/report", key="once").get_json()["body"] == '{"report": "sunny"}'
    assert (len(set(seller.headers)), uses_of(buyer.node, buyer.agent.address)) == (1, 1)


def test_a_request_without_a_key_is_not_paid_twice_within_ten_minutes(buyer: Buyer, seller: ScriptedSeller) -> None:
    first = buyer.fetch(seller.url + "/report")
    key = first.headers["Idempotency-Key"]
    assert key.startswith("derived-")
    again = buyer.fetch(seller.url + "/report")
    assert (again.headers["Idempotency-Key"], again.headers["Idempotent-Replayed"]) == (key, "true")
    assert again.get_json() == first.get_json()
    refused(buyer.fetch(seller.url + "/report", max_amount_usd=0.04), "IDEMPOTENCY_CONFLICT")
    assert buyer.fetch(seller.url + "/report?page=2").headers["Idempotency-Key"] != key
    assert uses_of(buyer.node, buyer.agent.address) == 2
    with time_machine.travel(clock.now().timestamp() + 11 * 60, tick=True):
        later = buyer.fetch(seller.url + "/report").get_json()
    assert later["payment"]["transaction_id"] != first.get_json()["payment"]["transaction_id"]


def test_a_derived_key_outlives_its_authorization(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.offer()["maxTimeoutSeconds"] = 10**6
    seller.behave = lambda _shop, exchange, _payment: exchange.json({}, 503)
    first = buyer.fetch(seller.url + "/report", wait=1).get_json()
    deadline = int(decoded(seller.headers[0])["payload"]["authorization"]["validBefore"])
    # While the first can be used, a repetition without a key must not sign a second.
    with time_machine.travel(deadline, tick=True):
        again = buyer.fetch(seller.url + "/report", wait=1).get_json()
    assert again["payment"]["transaction_id"] == first["payment"]["transaction_id"]
    assert len(set(seller.headers)) == 1


def test_a_pass_of_the_workers_does_not_load_what_sellers_stated(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.behave = lambda _shop, exchange, _payment: exchange.json({}, 503)
    payment = buyer.payment(seller.url + "/report", wait=1)
    [movement], _unreadable = open_transactions.due(BASE, clock.now() + timedelta(minutes=1))
    assert (movement.id, movement.latest.raw) == (payment["transaction_id"], b"")
    assert relayed.stored_authorization(movement.id).raw.decode() == seller.headers[0]


def test_a_wallet_without_the_amount_signs_nothing(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.offer()["amount"] = str(101 * CENT)
    details = refused(buyer.fetch(seller.url + "/report", max_amount_usd=5), "PAYMENT_FAILED")["details"]
    assert (details["reason"], details["missing"], details["currency"]) == ("insufficient_funds", "0.01", "USDC")
    assert (seller.headers, buyer.spent()) == ([], 0)


def test_pending_payments_are_not_available_for_others(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.behave = lambda _shop, exchange, _payment: exchange.json({}, 503)
    seller.offer()["amount"] = str(60 * CENT)
    assert buyer.payment(seller.url + "/a", wait=1, max_amount_usd=1)["state"] == "pending"
    refused(buyer.fetch(seller.url + "/b", max_amount_usd=1), "PAYMENT_FAILED")
    fund(buyer.node, buyer.agent.address, eth=1)
    moved = buyer.agent.move("0.5", "USDC", to=PAYEE)
    assert refused(moved, "TRANSFER_FAILED")["details"]["reason"] == "insufficient_funds"


@_own_node
def test_the_gateway_of_another_instance_of_this_service_is_paid_once(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path, driver: EvmDriver
) -> None:
    other_database = shutil.copy(sqlite_url.removeprefix("sqlite:///"), tmp_path / "other.sqlite")
    with (
        shop(build_app, f"sqlite:///{other_database}", {BASE: driver.real}, base_url="http://127.0.0.1") as other,
        buyer_on(build_app, sqlite_url, driver) as buyer,
    ):
        with other.app.app_context():
            driver.node.fund_eth(other.settler(BASE), ether(1))
            other.expire_capacity()
        other.upstream.behave = lambda exchange: exchange.json({"results": ["sunny"]})
        with served(other.app) as url:
            first, again = (buyer.fetch(url + SEARCH, key="once").get_json() for _ in range(2))
        assert first == again, first
        assert (first["status"], json.loads(first["body"])) == (200, {"results": ["sunny"]})
        assert first["payment"]["state"] == "paid"
        assert other.served() == 1
        with other.app.app_context():
            [paid] = other.payments()
        assert paid.payer == buyer.agent.address
    assert uses_of(buyer.node, buyer.agent.address) == 1


def test_a_payment_in_an_orphaned_block_is_pending_again(buyer: Buyer, seller: ScriptedSeller) -> None:
    snapshot = buyer.node.rpc("evm_snapshot")
    payments: list[Mapping[str, Any]] = []

    def keep(shop: ScriptedSeller, exchange: Exchange, payment: Mapping[str, Any]) -> None:
        payments.append(payment)
        serve(shop, exchange, payment)

    seller.behave = keep
    assert buyer.payment(seller.url + "/report", key="once")["state"] == "paid"
    assert buyer.node.rpc("evm_revert", snapshot)
    buyer.node.mine(3)
    buyer.run_workers()
    row = buyer.row()
    assert (row["status"], buyer.spent()) == ("pending", 0.01)
    seller.settle(payments[0])
    buyer.run_workers(minutes=2)
    assert buyer.row()["status"] == "confirmed"


def test_a_payment_of_which_no_node_has_the_log_is_paid_without_a_hash(
    build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode
) -> None:
    with (
        proxy(own_base_node.url) as forgets,
        buyer_on(build_app, sqlite_url, evm_driver(own_base_node, forgets.url)) as buyer,
        scripted_seller(own_base_node) as seller,
    ):
        forgets.after = spoil("eth_getLogs", [])
        assert buyer.payment(seller.url + "/report", key="once", wait=1)["state"] == "pending"
        buyer.expire()
        buyer.run_workers(minutes=60)
        row = buyer.row()
        assert (row["status"], row["tx_hash"], buyer.spent()) == ("confirmed", None, 0.01)
        buyer.run_workers(minutes=120)
        assert buyer.agent.history() == [row]
        payment = buyer.payment(seller.url + "/report", key="once")
        assert (payment["state"], payment["explorer_url"]) == ("paid", None)


def test_the_api_key_of_the_agent_is_never_sent_to_a_seller(buyer: Buyer, seller: ScriptedSeller) -> None:
    refused(buyer.fetch(seller.url, headers={"Authorization": f"Bearer {buyer.agent.key}"}), "INVALID_INPUT")
    assert buyer.fetch(seller.url, headers={"Authorization": "Bearer theirs"}).status_code == 200
    assert all(buyer.agent.key not in str(asked.headers) for asked in seller.upstream.asked)


def test_private_addresses_are_refused(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, settings={"allow_private_upstreams": False})
    with app.app_context():
        agent = register(app.test_client())
        for url in ("https://127.0.0.1/", "https://10.0.0.1/", "http://shop.example.com/", "https://localhost/"):
            order = {"url": url, "max_amount_usd": 1}
            refused(agent.post(f"{agent.wallet_url}/x402/fetch", order), "INVALID_INPUT")


@_own_node
def test_a_deleted_wallet_leaves_no_purchase(buyer: Buyer, seller: ScriptedSeller) -> None:
    seller.behave = lambda _shop, exchange, _payment: exchange.json({}, 503)
    buyer.fetch(seller.url + "/report", wait=1)
    wallet = buyer.agent.wallet_url
    refused(buyer.agent.delete(wallet), "TRANSACTION_IN_PROGRESS")
    buyer.expire()
    buyer.run_workers(minutes=60)
    assert buyer.agent.delete(f"{wallet}?force=true").status_code == 200
    with read_only_unit() as session:
        assert (count(session, ServicePurchase), count(session, PinnedPayee)) == (0, 0)


def test_stored_answers_are_pruned_after_a_day(buyer: Buyer, seller: ScriptedSeller) -> None:
    buyer.fetch(seller.url + "/report")
    now = clock.now()
    assert tuple(personal_data.prune("service_purchases", now + timedelta(hours=each)) for each in (0, 25)) == (0, 1)


def test_the_owner_sees_what_was_bought_where_without_its_query(buyer: Buyer, seller: ScriptedSeller) -> None:
    buyer.fetch(seller.url + "/report?token=sesame")
    code = buyer.agent.post("/v1/agents/claim-code").get_json()
    ada = person(buyer.app)
    ada.claim(code)
    host = urlsplit(seller.url).netloc
    page = ada.get(f"/owner/agents/{buyer.agent.id}")
    assert host in page.text
    row = buyer.row()
    activity = f"/owner/agents/{buyer.agent.id}/activity"
    found = ada.get(activity, text="/report")
    assert host in found.text
    shown = ada.get(f"{activity}/{row['id']}")
    assert f"GET {seller.url}/report" in shown.text
    assert all("sesame" not in each.text for each in (page, found, shown))


def open_session(buyer: Buyer, **body: Any) -> TestResponse:
    later = clock.isoformat(clock.now() + timedelta(hours=1))
    return buyer.agent.post(f"{buyer.agent.wallet_url}/sessions", {"max_usd": 0.015, "expires_at": later, **body})


@_own_node
def test_a_session_narrows_what_names_it_and_gets_back_what_was_not_paid(buyer: Buyer, seller: ScriptedSeller) -> None:
    session = open_session(buyer, domains=["127.0.0.1"]).get_json()
    seller.behave = lambda _shop, exchange, _payment: exchange.json({}, 503)
    url, budget = seller.url + "/report", {"session_id": session["id"]}
    assert buyer.payment(url, key="a", wait=1, **budget)["state"] == "pending"
    details = refused(buyer.fetch(url, key="b", **budget), "SESSION_LIMIT_EXCEEDED")["details"]
    assert (details["rule"], details["limit_usd"], details["remaining_usd"]) == ("session_id", 0.015, 0.005)
    seen = buyer.get(f"/sessions/{session['id']}")
    assert (seen["spent_usd"], seen["remaining_usd"]) == (0.01, 0.005)
    buyer.expire()
    buyer.run_workers(minutes=30)
    assert buyer.get(f"/sessions/{session['id']}")["remaining_usd"] == 0.015
    seller.behave = serve
    # By the chain's clock.
    with time_machine.travel(clock.now().timestamp() + 800, tick=True):
        assert buyer.payment(url, key="b", **budget)["state"] == "paid"
        # Without the session, the limits of the wallet alone.
        assert buyer.payment(url, key="c")["state"] == "paid"
    with time_machine.travel(clock.now().timestamp() + 3601, tick=True):
        expired = refused(buyer.fetch(url, key="d", **budget), "SESSION_LIMIT_EXCEEDED")
        assert expired["error"].startswith("This session expired")
    assert [each["id"] for each in buyer.get("/sessions")["sessions"]] == [session["id"]]


def test_a_session_applies_to_transfers_and_one_for_domains_allows_none(buyer: Buyer) -> None:
    fund(buyer.node, buyer.agent.address, eth=1)
    narrow = open_session(buyer, max_usd=0.5).get_json()["id"]
    for_shop = open_session(buyer, domains=["shop.example.com"]).get_json()["id"]

    def transfer(amount: str, session_id: str) -> TestResponse:
        return buyer.agent.move(amount, "USDC", to=PAYEE, options={"session_id": session_id})

    assert transfer("0.3", narrow).get_json()["status"] == "confirmed"
    refused(transfer("0.3", narrow), "SESSION_LIMIT_EXCEEDED")
    refused(transfer("0.01", for_shop), "SESSION_LIMIT_EXCEEDED")
    refused(transfer("0.01", buyer.agent.id), "NOT_FOUND")
    refused(transfer("0.01", "mine"), "INVALID_INPUT")


def test_sessions_are_opened_for_a_time_in_the_future(buyer: Buyer) -> None:
    for wrong in ("2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z", "2030-01-01T00:00:00", "tomorrow", 5):
        refused(open_session(buyer, expires_at=wrong), "INVALID_INPUT")
    other = register(buyer.app.test_client())
    session = open_session(buyer).get_json()["id"]
    answer = other.get(f"{other.wallet_url}/sessions/{session}")
    assert answer.status_code == 404


def test_a_tool_pays_a_web_service_once_however_often_it_is_retried(buyer: Buyer, seller: ScriptedSeller) -> None:
    order = {"wallet_id": buyer.agent.wallet_id, "url": seller.url + "/report", "max_amount_usd": 0.05}
    results = [
        call(buyer.agent.client, "fetch_and_pay", buyer.agent.key, **order, request_id="report-1") for _ in range(3)
    ]
    assert results[0]["structuredContent"]["payment"]["state"] == "paid", results[0]
    assert [each["structuredContent"] for each in results] == [results[0]["structuredContent"]] * 3
    assert (uses_of(buyer.node, buyer.agent.address), buyer.spent()) == (1, 0.01)
    above = call(buyer.agent.client, "fetch_and_pay", buyer.agent.key, **{**order, "max_amount_usd": 0.001})
    assert (above["isError"], above["structuredContent"]["code"]) == (True, "PER_TX_LIMIT_EXCEEDED")
