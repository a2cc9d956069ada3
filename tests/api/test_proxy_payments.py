"""Calls of catalog services without an account: paid once by x402, served once, counted as revenue once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import select
from werkzeug.test import TestResponse

from app.adapters.evm.chain import EvmChain
from app.catalog import statistics
from app.catalog.proxy.metering import ServiceCall
from app.catalog.services import service as services
from app.core import clock
from app.core.chains import USDC, ChainName
from app.db.unit_of_work import read_only_unit
from app.payments import treasury
from app.payments.models import Payment
from app.payments.settlement_capacity import SettlementCapacityCache
from app.payments.x402.gate import PaymentGrant
from app.ports.upstream import RelayOutcome
from app.state import app_state
from sandbox.evm import EvmNode
from tests.support.chains import ether, evm_chain, fund
from tests.support.evm import sent as pay
from tests.support.faults import FaultyChain
from tests.support.market import PRICE_NANOS, Market, market, sell
from tests.support.mcp import call as call_tool
from tests.support.mpp import answered
from tests.support.payment_scenes import Scene
from tests.support.payments import EvmPayer, Shop, by_hash, decoded, offered, person_with
from tests.support.sellers import served
from tests.support.servers import free_port
from tests.support.upstreams import Exchange

pytestmark = pytest.mark.chain
BASE = ChainName.BASE
PRICE_UNITS = PRICE_NANOS // 1000


@pytest.fixture
def stage(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Market]:
    with market(build_app, sqlite_url, chains=chains) as made:
        base_node.fund_eth(treasury.settler(BASE), ether(1))
        app_state().part(SettlementCapacityCache).clear()
        made.behave(lambda exchange: exchange.json({"weather": "sunny"}))
        yield made


@pytest.fixture
def payer(base_node: EvmNode) -> EvmPayer:
    return EvmPayer(base_node)


def ask(
    stage: Market, headers: Mapping[str, str] | None = None, *, path: str = "/weather/Berlin", **request: Any
) -> TestResponse:
    """Send a call without a key."""
    return stage.app.test_client().open(
        f"/v1/x402/services/{stage.id}{path}", headers=dict(headers or {}), **{"method": "GET", **request}
    )


class Answered:
    """The head of a response, of which a meter only reads the status."""

    status = 200


def refusal(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


def assert_paid_calls(stage: Market, calls: int, *, price_usd: float = 0.25) -> None:
    """Check that the seller's statistics show this many calls, that the audit agrees and that no credits were used."""
    stats = stage.stats()
    assert (stats["total_calls"], stats["total_revenue_usd"]) == (calls, calls * price_usd)
    assert stats["last_24h"]["calls"] == calls
    assert stage.spent_nanos() == 0
    with read_only_unit() as session:
        assert statistics.find_wrong_sums(session) == []


def test_a_call_is_paid_by_mpp(stage: Market, payer: EvmPayer) -> None:
    body = {"method": "POST", "data": b"{}"}
    headers = answered(payer, ask(stage, **body))
    other = ask(stage, headers, method="POST", data=b"{ }")
    assert (other.status_code, other.get_json()["details"]["reason"]) == (402, "challenge_not_issued")
    answer = ask(stage, headers, **body)
    assert (answer.status_code, "Payment-Receipt" in answer.headers) == (200, True)
    assert_paid_calls(stage, 1)


def test_a_call_without_a_key_is_answered_with_the_terms_and_served_once_for_a_payment(
    stage: Market, payer: EvmPayer
) -> None:
    refused = ask(stage)
    assert refusal(refused) == (402, "PAYMENT_REQUIRED")
    assert offered(refused)["amount"] == str(PRICE_UNITS)
    assert stage.upstream.asked == []
    headers = payer.pays(refused)
    answer = ask(stage, headers)
    assert (answer.status_code, answer.get_json()) == (200, {"weather": "sunny"})
    settled = decoded(answer.headers["PAYMENT-RESPONSE"])
    assert (settled["success"], settled["payer"]) == (True, payer.address)
    [asked] = stage.upstream.asked
    assert not [name for name, _ in asked.headers if "payment" in name.lower()]
    assert refusal(ask(stage, headers)) == (402, "PAYMENT_ALREADY_USED")
    assert len(stage.upstream.asked) == 1
    assert_paid_calls(stage, 1)


def test_a_transaction_hash_pays_as_well(stage: Market, base_node: EvmNode) -> None:
    chain: EvmChain = stage.app.state.ports.chains[BASE]
    sent = pay(chain, person_with(base_node), treasury.recipient(BASE), PRICE_UNITS, token=USDC)
    base_node.mine(6)
    assert ask(stage, by_hash(sent.tx_hash, BASE)).status_code == 200
    assert refusal(ask(stage, by_hash(sent.tx_hash, BASE))) == (402, "PAYMENT_ALREADY_USED")
    assert_paid_calls(stage, 1)


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "/weather/Paris"},
        {"path": "/weather/Berlin?units=f"},
        {"method": "DELETE"},
        {"method": "POST", "data": b"other"},
    ],
    ids=["path", "query", "method", "body"],
)
def test_a_payment_pays_for_no_other_request(stage: Market, payer: EvmPayer, changed: Mapping[str, Any]) -> None:
    stage.behave(lambda exchange: exchange.json({}, 500))
    headers = payer.pays(ask(stage))
    assert ask(stage, headers).status_code == 500
    stage.behave(lambda exchange: exchange.json({}))
    assert refusal(ask(stage, headers, **changed)) == (402, "PAYMENT_ALREADY_USED")
    assert ask(stage, headers).status_code == 200
    assert_paid_calls(stage, 1)


def test_a_payment_for_a_cheap_service_does_not_pay_for_an_expensive_one(stage: Market, payer: EvmPayer) -> None:
    cheap = sell(stage.seller, base_url=f"{stage.upstream.url}/cheap", price_per_call_usd=0.02)
    refused = stage.app.test_client().get(f"/v1/x402/services/{cheap['id']}/x")
    answer = ask(stage, payer.pays(refused))
    assert refusal(answer) == (402, "PAYMENT_INVALID")
    assert answer.get_json()["details"]["reason"] == "invalid_exact_evm_payload_authorization_value_mismatch"
    assert stage.upstream.asked == []
    assert_paid_calls(stage, 0)


def test_a_price_that_rises_after_the_terms_is_refused_and_nothing_is_taken(stage: Market, payer: EvmPayer) -> None:
    headers = payer.pays(ask(stage))
    stage.change(price_per_call_usd=0.26)
    assert refusal(ask(stage, headers)) == (402, "PAYMENT_INVALID")
    assert stage.upstream.asked == []
    assert_paid_calls(stage, 0)


def test_a_payment_that_was_accepted_keeps_its_price(stage: Market, payer: EvmPayer) -> None:
    stage.behave(lambda exchange: exchange.json({}, 503))
    headers = payer.pays(ask(stage))
    assert ask(stage, headers).status_code == 503
    stage.change(price_per_call_usd=5)
    stage.behave(lambda exchange: exchange.json({}))
    assert ask(stage, headers).status_code == 200
    assert_paid_calls(stage, 1)


def test_a_free_service_costs_the_minimum_of_a_payment(stage: Market, payer: EvmPayer) -> None:
    stage.change(price_per_call_usd=0)
    refused = ask(stage)
    assert offered(refused)["amount"] == "10000"
    assert ask(stage, payer.pays(refused)).status_code == 200
    assert_paid_calls(stage, 1, price_usd=0.01)


@pytest.mark.parametrize("failure", ["answers 500", "hangs up"])
def test_a_failure_of_the_service_leaves_the_payment_to_be_presented_again(
    stage: Market, payer: EvmPayer, failure: str
) -> None:
    def fail(exchange: Exchange) -> None:
        if failure == "answers 500":
            exchange.json({}, 500)
        else:
            exchange.hang_up()

    headers = payer.pays(ask(stage))
    stage.behave(fail)
    assert ask(stage, headers).status_code in {500, 502}
    assert stage.stats()["last_24h"]["success_rate"] == 0
    assert_paid_calls(stage, 0)
    stage.behave(lambda exchange: exchange.json({}))
    assert ask(stage, headers).status_code == 200
    assert_paid_calls(stage, 1)


def test_concurrent_calls_with_one_payment_are_served_once(stage: Market, payer: EvmPayer) -> None:
    headers = payer.pays(ask(stage))
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: ask(stage, headers).status_code, range(4)))
    # The others are refused, or asked to come back while the payment is not settled.
    assert answers.count(200) == 1
    assert set(answers) <= {200, 402, 503}
    assert len(stage.upstream.asked) == 1
    assert_paid_calls(stage, 1)


def test_credits_pay_first_and_a_payment_when_they_do_not_suffice(stage: Market, payer: EvmPayer) -> None:
    stage.change(price_per_call_usd=6)
    key = {"X-API-Key": stage.buyer.key}
    assert ask(stage, key).status_code == 200
    refused = ask(stage, key)
    assert refusal(refused) == (402, "INSUFFICIENT_CREDITS")
    rich = EvmPayer(payer.node, dollars=10)
    assert ask(stage, {**key, **rich.pays(refused)}).status_code == 200
    stats = stage.stats()
    assert (stats["total_calls"], stats["total_revenue_usd"]) == (2, 12)
    with read_only_unit() as session:
        assert statistics.find_wrong_sums(session) == []


def test_a_payment_does_not_replace_credits_where_a_session_has_to_count(stage: Market, payer: EvmPayer) -> None:
    stage.change(price_per_call_usd=50)
    body = {"max_usd": 100, "expires_at": (clock.now() + timedelta(hours=1)).isoformat()}
    session = stage.buyer.post(f"/v1/wallets/{stage.buyer.wallet_id}/sessions", body).get_json()
    key = {"X-API-Key": stage.buyer.key, "X-Session-Id": session["id"]}
    rich = EvmPayer(payer.node, dollars=60)
    paid = rich.pays(ask(stage, {"X-API-Key": stage.buyer.key}))
    assert refusal(ask(stage, {**key, **paid})) == (402, "INSUFFICIENT_CREDITS")
    assert stage.upstream.asked == []


def test_an_invalid_key_is_refused_unless_a_payment_comes_with_it(stage: Market, payer: EvmPayer) -> None:
    unknown = {"X-API-Key": "ak_" + "0" * 43}
    assert refusal(ask(stage, unknown)) == (401, "UNAUTHORIZED")
    assert ask(stage, {**unknown, **payer.pays(ask(stage))}).status_code == 200


@pytest.mark.parametrize("header", ["X-Wallet-Id", "X-Session-Id"])
def test_a_wallet_or_session_needs_a_key(stage: Market, header: str) -> None:
    status = ask(stage, {header: stage.buyer.wallet_id}).status_code
    assert status in {400, 401}


def test_unknown_and_paused_services_ask_for_no_payment(stage: Market) -> None:
    stage.change(status="paused")
    answer = ask(stage)
    assert refusal(answer) == (404, "NOT_FOUND")
    assert "PAYMENT-REQUIRED" not in answer.headers


def test_a_call_that_ended_is_counted_once_however_often_its_end_is_recorded(stage: Market, payer: EvmPayer) -> None:
    assert ask(stage, payer.pays(ask(stage))).status_code == 200
    with read_only_unit() as session:
        [payment] = session.scalars(select(Payment)).all()
    grant = PaymentGrant(payment.id, PRICE_NANOS, {}, {})
    meter = ServiceCall(services.callable_service(stage.id), grant, model="/x")
    meter.on_response_head(Answered())
    meter.end(RelayOutcome.COMPLETE)
    meter.on_no_response(is_upstream_failure=True)
    assert stage.stats()["last_24h"]["success_rate"] == 1
    assert_paid_calls(stage, 1)


@pytest.fixture
def reachable(
    build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain], base_node: EvmNode
) -> Iterator[Market]:
    """The market, of which the application is reachable at its own URL."""
    port = free_port()
    settings = {"base_url": f"http://127.0.0.1:{port}", "port": str(port), "confirmation_wait_seconds": "5"}
    with market(build_app, sqlite_url, chains=chains, **settings) as made, served(made.app, port=port):
        base_node.fund_eth(treasury.settler(BASE), ether(1))
        app_state().part(SettlementCapacityCache).clear()
        made.behave(lambda exchange: exchange.json({"weather": "sunny"}))
        yield made


def test_a_wallet_buys_from_this_catalog_like_from_any_seller(reachable: Market, base_node: EvmNode) -> None:
    fund(base_node, reachable.buyer.address, eth=0, dollars=1)
    url = f"{reachable.app.state.settings.public_url}/v1/x402/services/{reachable.id}/weather/Berlin"
    path = f"{reachable.buyer.wallet_url}/x402/fetch"
    for _ in range(2):
        answer = reachable.buyer.post(path, {"url": url, "max_amount_usd": 0.3}, Idempotency_Key="once").get_json()
        assert (answer["status"], answer["body"]) == (200, '{"weather": "sunny"}')
        assert (answer["payment"]["state"], answer["payment"]["amount"]) == ("paid", "0.25")
    assert len(reachable.upstream.asked) == 1
    assert_paid_calls(reachable, 1)


@pytest.mark.parametrize("path", ["/v1/wallets", "/v1/proxy/a", "/v1/x402/servicesx/a", "/mcp", "/"])
def test_no_other_url_of_this_service_is_fetched(reachable: Market, path: str) -> None:
    body = {"url": reachable.app.state.settings.public_url + path, "max_amount_usd": 1}
    answer = reachable.buyer.post(f"{reachable.buyer.wallet_url}/x402/fetch", body)
    assert refusal(answer) == (400, "INVALID_INPUT")
    assert "this service itself" in answer.get_json()["error"]


def test_the_tool_of_mcp_is_paid_for_without_a_key(stage: Market, payer: EvmPayer) -> None:
    client, wanted = stage.app.test_client(), {"service": stage.id, "path": "weather/Berlin"}
    required = call_tool(client, "call_service", **wanted)
    assert required["structuredContent"]["code"] == "PAYMENT_REQUIRED"
    terms = required["structuredContent"]["accepts"][0]
    payment = {"x402Version": 2, "accepted": terms, "payload": payer.authorize(terms)}
    paid = call_tool(client, "call_service", meta={"x402/payment": payment}, **wanted)
    assert paid["structuredContent"]["body"] == '{"weather": "sunny"}'
    assert paid["_meta"]["x402/payment-response"]["success"] is True
    assert_paid_calls(stage, 1)


@pytest.fixture
def held(build_app: Callable[..., Flask], sqlite_url: str, own_base_node: EvmNode) -> Iterator[tuple[Market, Scene]]:
    """The market, of which payments arrive at the chain when a test says so."""
    chain = FaultyChain(evm_chain(own_base_node))
    settings = {"base_stuck_blocks": 3, "confirmation_wait_seconds": "0"}
    with market(build_app, sqlite_url, chains={BASE: chain}, **settings) as made:
        own_base_node.fund_eth(treasury.settler(BASE), ether(1))
        app_state().part(SettlementCapacityCache).clear()
        made.behave(lambda exchange: exchange.json({"weather": "sunny"}))
        yield made, Scene(Shop(made.app, made.upstream), chain, BASE)


def test_who_signs_anew_while_the_payment_for_a_service_is_pending_pays_once(
    held: tuple[Market, Scene], own_base_node: EvmNode
) -> None:
    stage, scene = held
    payer, unpaid = EvmPayer(own_base_node), ask(stage)
    scene.hold()
    for headers in (payer.pays(unpaid), second := payer.pays(unpaid)):
        pending = ask(stage, headers)
        assert refusal(pending) == (503, "PAYMENT_PENDING")
        assert "PAYMENT-REQUIRED" not in pending.headers
    scene.land()
    assert ask(stage, second).status_code == 200
    assert (scene.submissions(), scene.received()) == (1, PRICE_UNITS)
    assert_paid_calls(stage, 1)


def test_who_signs_anew_for_the_tool_of_mcp_while_the_payment_is_pending_pays_once(
    held: tuple[Market, Scene], own_base_node: EvmNode
) -> None:
    stage, scene = held
    payer, client = EvmPayer(own_base_node), stage.app.test_client()
    wanted = {"service": stage.id, "path": "weather/Berlin"}
    terms = call_tool(client, "call_service", **wanted)["structuredContent"]["accepts"][0]

    def signed() -> dict[str, Any]:
        document = {"x402Version": 2, "accepted": terms, "payload": payer.authorize(terms)}
        return {"x402/payment": document}

    scene.hold()
    for payment in (signed(), second := signed()):
        pending = call_tool(client, "call_service", meta=payment, **wanted)["structuredContent"]
        assert pending["code"] == "PAYMENT_PENDING"
        assert "accepts" not in pending
    scene.land()
    paid = call_tool(client, "call_service", meta=second, **wanted)
    assert paid["structuredContent"]["body"] == '{"weather": "sunny"}'
    assert (scene.submissions(), scene.received()) == (1, PRICE_UNITS)
    assert_paid_calls(stage, 1)
