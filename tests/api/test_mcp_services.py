"""The tool `call_service`: calls of services and providers, charged once, or paid without a key by x402."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import jsonschema
import pytest
import time_machine
from flask import Flask
from sqlalchemy import func, select

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import ChainName
from app.db.unit_of_work import read_only_unit
from app.idempotency.service import IdempotencyKey
from app.mcp.service_calls import _MAX_STORED_KIB_PER_DAY
from app.state import app_state
from sandbox.evm import EvmNode
from tests.support.chains import fund
from tests.support.gateway import SEARCH_NANOS, Stage, gateway_stage
from tests.support.market import Market, market
from tests.support.mcp import call, request_of
from tests.support.payments import EvmPayer, Shop, shop
from tests.support.upstreams import Exchange

SEARCH: dict[str, Any] = {"service": "brave", "path": "web/search?q=agents"}


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url) as made:
        made.behave(lambda exchange: exchange.json({"results": []}))
        yield made


@pytest.fixture
def sellers(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Market]:
    with market(build_app, sqlite_url) as made:
        yield made


def search(stage: Stage, **more: object) -> dict[str, Any]:
    return call(stage.agent.client, "call_service", stage.agent.key, **{**SEARCH, **more})


def test_a_provider_is_called_and_charged_like_over_http(stage: Stage) -> None:
    result = search(stage)
    assert result["isError"] is False, result
    found = result["structuredContent"]
    assert (found["status"], found["body"], found["body_encoding"]) == (200, '{"results": []}', "text")
    assert found["cost_usd"] == "0.005"
    assert stage.upstream.asked[-1].target == "/res/v1/web/search?q=agents"
    assert stage.spent_nanos() == SEARCH_NANOS
    stage.assert_all_agree()
    message = request_of("tools/list")
    listed = stage.agent.client.post("/mcp?output_schemas=true", json=message).get_json()["result"]["tools"]
    [described] = [tool for tool in listed if tool["name"] == "call_service"]
    jsonschema.validate(found, described["outputSchema"])
    jsonschema.validate(SEARCH, described["inputSchema"])


def test_a_retry_with_its_request_id_is_charged_once(stage: Stage) -> None:
    first = search(stage, request_id="one")
    again = search(stage, request_id="one")
    assert again["structuredContent"] == first["structuredContent"]
    assert again["_meta"]["purser/replayed"] is True
    conflict = search(stage, request_id="one", path="web/search?q=other")
    assert conflict["structuredContent"]["code"] == "IDEMPOTENCY_CONFLICT"
    assert stage.spent_nanos() == SEARCH_NANOS
    # Without one, an equal search is a new one: its results may have changed.
    search(stage)
    assert stage.spent_nanos() == 2 * SEARCH_NANOS


def test_a_large_response_is_not_stored_but_its_retry_is_not_charged(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.answer(b"x" * 200_000))
    first = search(stage, request_id="once")["structuredContent"]
    again = search(stage, request_id="once")
    assert (len(first["body"]), again["_meta"]["purser/replayed"]) == (200_000, True)
    seen = again["structuredContent"]
    assert (seen["status"], seen["cost_usd"], seen["truncated"], seen["body"]) == (200, first["cost_usd"], True, "")
    assert seen["body_sha256"] == hashlib.sha256(b"x" * 200_000).hexdigest()
    assert stage.spent_nanos() == SEARCH_NANOS
    with read_only_unit() as session:
        assert session.scalar(select(func.sum(func.length(IdempotencyKey.answer_sealed)))) < 2_000


def test_stored_responses_of_one_account_have_a_bound_per_day(stage: Stage) -> None:
    quota = f"{_MAX_STORED_KIB_PER_DAY} per day"
    app_state().rate_limiter.spend(quota, "stored", stage.agent.id, cost=_MAX_STORED_KIB_PER_DAY - 1)
    kept = search(stage, request_id="a")["structuredContent"]
    dropped = search(stage, request_id="b")["structuredContent"]
    assert search(stage, request_id="a")["structuredContent"] == kept
    seen = search(stage, request_id="b")["structuredContent"]
    assert (seen["body"], seen["truncated"], seen["cost_usd"]) == ("", True, dropped["cost_usd"])
    assert stage.spent_nanos() == 2 * SEARCH_NANOS


def test_a_retry_of_a_call_that_still_runs_or_was_lost_is_never_charged_again(stage: Stage) -> None:
    def behave(exchange: Exchange) -> None:
        exchange.wait_for("answer")
        exchange.json({"results": []})

    stage.behave(behave)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(search, stage, request_id="one")
        stage.upstream.await_asked()
        assert search(stage, request_id="one")["structuredContent"]["code"] == "IDEMPOTENCY_CONFLICT"
        with time_machine.travel(clock.now() + timedelta(minutes=5), tick=True):
            late = search(stage, request_id="one")
        stage.upstream.open("answer")
        assert first.result()["isError"] is False
    assert (late["isError"], late["structuredContent"]["code"]) == (True, "IDEMPOTENCY_CONFLICT")
    assert len(stage.upstream.asked) == 1
    assert search(stage, request_id="one")["_meta"]["purser/replayed"] is True


def test_a_call_that_failed_and_was_not_charged_may_be_repeated(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({}, 500))
    assert search(stage, request_id="one")["structuredContent"]["status"] == 500
    stage.behave(lambda exchange: exchange.reset())
    assert search(stage, request_id="one")["structuredContent"]["code"] == "UPSTREAM_ERROR"
    stage.behave(lambda exchange: exchange.json({"results": [1]}))
    assert search(stage, request_id="one")["structuredContent"]["status"] == 200
    assert stage.spent_nanos() == SEARCH_NANOS
    stage.assert_nothing_held()


def test_a_long_or_binary_response_is_cut_and_holds_nothing(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.answer(b"\xff" * 3_000_000, 200, ("Content-Type", "image/png")))
    found = search(stage)["structuredContent"]
    assert (found["truncated"], found["body_encoding"]) == (True, "base64")
    assert len(found["body"]) < 1_500_000
    stage.assert_nothing_held()


HOSTILE: list[dict[str, Any]] = [
    {"service": "../v1/agents"},
    {"service": "brave/../../agents"},
    {"service": ["brave"]},
    {"path": "../../../v1/agents"},
    {"path": "%2e%2e/%2e%2e/agents"},
    {"path": "web/search?q=a b"},
    {"path": "web/search\r\nX-Evil: 1"},
    {"path": "web/search#a"},
    {"path": "//web/search"},
    {"path": 7},
    {"method": "TRACE"},
    {"method": "GET\r\n"},
    {"body": {"a": 1}},
    {"max_price_usd": 1},
    {"session_id": "5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"},
    {"wallet_id": "a\r\nX-Evil: 1"},
    {"request_id": ""},
    {"request_id": "ü"},
    {"request_id": 7},
    {"headers": {"X-Evil": "1"}},
]


def test_hostile_arguments_reach_no_upstream(stage: Stage) -> None:
    for changed in HOSTILE:
        result = search(stage, **changed)
        assert result["isError"] is True, changed
        assert result["structuredContent"]["code"] in {"INVALID_INPUT", "NOT_FOUND", "ROUTE_NOT_ALLOWED"}, changed
        assert stage.upstream.asked == [], changed
    assert stage.spent_nanos() == 0


def test_a_service_of_another_agent_is_called_below_its_maximum_price(sellers: Market) -> None:
    arguments = {"service": sellers.id, "path": "weather/Berlin?units=c"}
    client, key = sellers.buyer.client, sellers.buyer.key
    refused = call(client, "call_service", key, **arguments, max_price_usd=0.2)
    assert refused["structuredContent"]["code"] == "PER_TX_LIMIT_EXCEEDED"
    sellers.assert_charged(0)
    result = call(client, "call_service", key, **arguments, max_price_usd=0.25)
    assert result["structuredContent"]["status"] == 200, result
    assert sellers.upstream.asked[-1].target == "/api/weather/Berlin?units=c"
    sellers.assert_charged(1)


def test_the_key_of_an_agent_never_reaches_a_seller(sellers: Market) -> None:
    key = sellers.buyer.key
    for leaked in ({"path": f"x?token={key}"}, {"body": f'{{"key": "{key}"}}', "method": "POST"}):
        result = call(sellers.buyer.client, "call_service", key, service=sellers.id, **leaked)
        assert result["structuredContent"]["code"] == "INVALID_INPUT"
    assert sellers.upstream.asked == []


@pytest.mark.chain
class TestPaymentWithoutAKey:
    """Payments by x402's transport for MCP."""

    @pytest.fixture
    def open_shop(
        self, build_app: Callable[..., Flask], sqlite_url: str, chains: dict[ChainName, EvmChain]
    ) -> Iterator[Shop]:
        with shop(build_app, sqlite_url, chains) as made:
            made.upstream.behave = lambda exchange: exchange.json({"results": []})
            yield made

    def test_a_tool_is_paid_for_once(self, open_shop: Shop, base_node: EvmNode) -> None:
        fund(base_node, open_shop.settler(ChainName.BASE), eth=1)
        open_shop.expire_capacity()
        client = open_shop.app.test_client()
        required = call(client, "call_service", **SEARCH)
        assert required["isError"] is True
        document = required["structuredContent"]
        assert (document["x402Version"], document["code"]) == (2, "PAYMENT_REQUIRED")
        terms = document["accepts"][0]
        payload = EvmPayer(base_node).authorize(terms)
        payment = {"x402/payment": {"x402Version": 2, "accepted": terms, "payload": payload}}
        paid = call(client, "call_service", meta=payment, **SEARCH)
        assert paid["isError"] is False, paid
        assert paid["structuredContent"]["body"] == '{"results": []}'
        settled = paid["_meta"]["x402/payment-response"]
        assert (settled["success"], settled["network"]) == (True, terms["network"])
        again = call(client, "call_service", meta=payment, **SEARCH)
        assert again["structuredContent"]["code"] == "PAYMENT_ALREADY_USED"
        other = call(client, "call_service", meta=payment, **{**SEARCH, "path": "web/search?q=other"})
        assert other["isError"] is True
        assert open_shop.served() == 1

    @pytest.mark.parametrize(
        "payment", ["text", 7, [], {}, {"x402Version": 2}, {"x402Version": 1.5, "payload": {"a": 1e3}}]
    )
    def test_a_malformed_payment_is_refused(self, open_shop: Shop, payment: object) -> None:
        client = open_shop.app.test_client()
        result = call(client, "call_service", meta={"x402/payment": payment}, **SEARCH)
        assert result["isError"] is True
        assert result["structuredContent"]["code"] in {"INVALID_INPUT", "PAYMENT_INVALID"}
        assert open_shop.served() == 0
