"""`POST /v1/trading/perpdex`: reads from a stand-in of the exchange, and all other actions up to their 501."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from eth_keys import keys
from flask import Flask
from openapi_schema_validator import OAS31Validator
from sqlalchemy import func, select, text
from werkzeug.test import TestResponse

from app.db.unit_of_work import read_only_unit, unit_of_work
from app.ports.perpdex import Perpdex, PerpdexQuery, PerpdexReply
from app.spending import accounts as spending_accounts
from app.wallets.core.models import Transaction
from sandbox.perpdex import ExchangeServer, Fault
from tests.support.agents import Agent, register
from tests.support.exchange import adapter_for, kinds_asked, running_exchange
from tests.support.loopback_http import unused_url

PATH = "/v1/trading/perpdex"
DESTINATION = "0x5e9ee1089755c3435139848e47e6635505d5a13a"
READS = ("status", "positions", "orders", "fills", "markets", "ticker", "orderbook", "funding")
ORDER = {"symbol": "ETH", "side": "buy", "price": "3000", "amount": "0.01"}
WRITES: dict[str, dict[str, Any]] = {
    "order": ORDER,
    "cancel": {"symbol": "ETH", "orderId": 91490955},
    "cancel_all": {},
    "set_leverage": {"symbol": "ETH", "leverage": 5, "cross": True},
    "withdraw": {"amount": "10", "destination": DESTINATION},
    "transfer": {"amount": "10", "destination": DESTINATION},
}


@pytest.fixture
def exchange() -> Iterator[ExchangeServer]:
    with running_exchange() as server:
        yield server


@pytest.fixture
def agent(build_app: Callable[..., Flask], sqlite_url: str, exchange: ExchangeServer) -> Iterator[Agent]:
    app = build_app(sqlite_url, perpdex=adapter_for(exchange.url))
    with app.app_context():
        yield register(app.test_client())


@pytest.fixture
def offline_agent(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Agent]:
    """An agent of a service that has never reached the exchange."""
    app = build_app(sqlite_url, perpdex=adapter_for(unused_url()))
    with app.app_context():
        yield register(app.test_client())


def call(agent: Agent, action: str, **parameters: Any) -> TestResponse:
    return agent.post(PATH, {"walletId": agent.wallet_id, "action": action, **parameters})


def read(agent: Agent, action: str, **parameters: Any) -> dict[str, Any]:
    answer = call(agent, action, **parameters)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.get_json()
    assert (body["action"], body["wallet_id"], body["address"]) == (action, agent.wallet_id, agent.address)
    return body


def preview(agent: Agent, action: str, **parameters: Any) -> dict[str, Any]:
    answer = call(agent, action, **parameters)
    assert answer.status_code == 501, answer.text
    body: dict[str, Any] = answer.get_json()
    assert body["code"] == "NOT_IMPLEMENTED"
    assert (body["action"], body["wallet_id"], body["address"]) == (action, agent.wallet_id, agent.address)
    assert body["payload"].keys() == {"action", "nonce", "signature", "vaultAddress"}
    assert body["payload"]["signature"] is None
    assert body["payload"]["vaultAddress"] is None
    return body


def problem(answer: TestResponse, field: str) -> str:
    assert answer.status_code == 400, answer.text
    body = answer.get_json()
    assert body["code"] == "INVALID_INPUT"
    first: str = body["details"]["fields"][field][0]
    return first


def failure(answer: TestResponse) -> tuple[int, str]:
    return answer.status_code, answer.get_json()["code"]


def test_each_read_returns_the_data_of_the_exchange(agent: Agent) -> None:
    status = read(agent, "status")
    assert status["account"]["marginSummary"]["accountValue"] == "13109.963053"
    assert status["spot"]["balances"][0]["total"] == "14.625485"
    assert read(agent, "positions")["positions"][0]["position"]["szi"] == "0.0335"
    assert [order["oid"] for order in read(agent, "orders")["orders"]] == [91490942, 91490955]
    assert read(agent, "fills")["fills"][0]["tid"] == 118906512037719
    assert read(agent, "markets")["markets"][1]["name"] == "ETH"
    assert read(agent, "ticker")["mids"]["kPEPE"] == "0.004385"
    book = read(agent, "orderbook")
    assert (book["symbol"], book["orderbook"].keys()) == ("ETH", {"bids", "asks", "time"})
    assert book["orderbook"]["bids"][0] == {"px": "3000.24", "sz": "3.5", "n": 1}
    assert read(agent, "funding")["funding"]["rates"][0]["funding_rate"] == "0.0000125"


def test_a_ticker_of_one_market_is_its_mid_price_as_a_string(agent: Agent) -> None:
    for symbol, spelling in (("ETH", "ETH"), ("eth", "ETH"), ("KPEPE", "kPEPE"), ("@107", "@107")):
        ticker = read(agent, "ticker", symbol=symbol)
        assert ticker["symbol"] == spelling
        assert isinstance(ticker["mid_price"], str)
        assert "mids" not in ticker


def test_responses_match_the_openapi_document(agent: Agent) -> None:
    document = agent.client.get("/openapi.json").get_json()
    responses = document["paths"][PATH]["post"]["responses"]
    schema = responses["200"]["content"]["application/json"]["schema"]
    members = document["components"]["schemas"]["TradingRead"]["properties"].keys()
    whole = OAS31Validator({**schema, "components": document["components"]})
    for action, parameters in [(action, {}) for action in READS] + [("ticker", {"symbol": "ETH"})]:
        body = read(agent, action, **parameters)
        assert [error.message for error in whole.iter_errors(body)] == [], action
        assert body.keys() <= members


def test_a_body_of_every_action_matches_exactly_one_schema(agent: Agent) -> None:
    document = agent.client.get("/openapi.json").get_json()
    request = document["paths"][PATH]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert request["discriminator"]["mapping"].keys() == {*READS, *WRITES}
    validator = OAS31Validator({**request, "components": document["components"]})
    for action in (*READS, *WRITES):
        body = {"walletId": agent.wallet_id, "action": action, **WRITES.get(action, {})}
        assert [error.message for error in validator.iter_errors(body)] == [], action


def test_null_counts_as_omitted(agent: Agent) -> None:
    assert "mids" in read(agent, "ticker", symbol=None)
    assert read(agent, "orderbook", symbol=None)["symbol"] == "ETH"
    assert preview(agent, "order", **ORDER, tif=None)["payload"]["action"]["orders"][0]["t"]


def test_an_unknown_symbol_is_refused_with_similar_ones(agent: Agent) -> None:
    for action, more in (("ticker", {}), ("orderbook", {}), ("order", ORDER), ("cancel", {"orderId": 1})):
        answer = call(agent, action, **{**more, "symbol": "ETH-PERP"})
        assert problem(answer, "symbol") == "is not a market of the exchange; did you mean ETH"
        assert answer.get_json()["details"]["near_matches"] == ["ETH"]
    assert call(agent, "orderbook", symbol="BTCC").get_json()["details"]["near_matches"][0] == "BTC"
    assert call(agent, "ticker", symbol="pepe").get_json()["details"]["near_matches"] == ["kPEPE"]
    assert call(agent, "ticker", symbol="☃").get_json()["details"]["near_matches"] == []


def test_a_delisted_market_is_named_as_such(agent: Agent) -> None:
    assert "has no mid price" in problem(call(agent, "ticker", symbol="MATIC"), "symbol")
    assert "has no order book" in problem(call(agent, "orderbook", symbol="MATIC"), "symbol")
    assert "delisted" in problem(call(agent, "order", **{**ORDER, "symbol": "MATIC"}), "symbol")
    assert "delisted" in problem(call(agent, "set_leverage", symbol="MATIC", leverage=2), "symbol")


@pytest.mark.postgres
def test_each_read_records_one_query_and_moves_nothing(
    each_database_url: str, build_app: Callable[..., Flask], exchange: ExchangeServer
) -> None:
    app = build_app(each_database_url, perpdex=adapter_for(exchange.url))
    with app.app_context():
        agent = register(app.test_client())
        ids = [read(agent, action)["transaction_id"] for action in READS]
        rows = agent.history(type="trading_query")
        assert [row["id"] for row in rows] == ids[::-1]
        assert [row["kind"] for row in rows] == list(READS)[::-1]
        for row in rows:
            expected = {
                "wallet_id": agent.wallet_id, "chain": "perpdex", "from_address": agent.address,
                "to_address": "perpdex",
                "amount": "0", "currency": "USDC", "tx_hash": None, "status": "confirmed", "cost_usd": 0,
                "explorer_url": None,
            }  # fmt: skip
            assert {name: row[name] for name in expected} == expected
            assert row["confirmed_at"] == row["created_at"]
        assert agent.history(chain="perpdex") == rows
        assert agent.history(chain="base") == []
        assert agent.get(agent.wallet_url).get_json()["transaction_count"] == len(READS)
        assert agent.transaction(ids[0])["events"][0]["status"] == "confirmed"
        assert agent.spent_this_month() == 0
        assert agent.delete(agent.wallet_url).status_code == 200


class WalletDeletingExchange:
    """An exchange that deletes the wallet before it returns its response."""

    def __init__(self, real: Perpdex) -> None:
        self.real = real
        self.delete: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    def fetch(self, question: PerpdexQuery) -> PerpdexReply:
        reply = self.real.fetch(question)
        self.delete()
        return reply


@pytest.mark.postgres
def test_deleting_a_wallet_during_a_query_leaves_no_row(
    each_database_url: str, build_app: Callable[..., Flask], exchange: ExchangeServer
) -> None:
    perpdex = WalletDeletingExchange(adapter_for(exchange.url))
    app = build_app(each_database_url, perpdex=perpdex)
    with app.app_context():
        agent = register(app.test_client())
        perpdex.delete = lambda: agent.delete(agent.wallet_url)
        assert failure(call(agent, "positions")) == (404, "NOT_FOUND")
        with read_only_unit() as session:
            assert session.scalar(select(func.count()).select_from(Transaction)) == 0


def test_a_failed_read_and_an_action_record_nothing(agent: Agent, exchange: ExchangeServer) -> None:
    exchange.faults.add(Fault(type="clearinghouseState", status=503))
    assert failure(call(agent, "positions")) == (502, "PERPDEX_ERROR")
    assert call(agent, "ticker", symbol="NOPE").status_code == 400
    for action, parameters in WRITES.items():
        preview(agent, action, **parameters)
    assert agent.history() == []
    assert agent.spent_this_month() == 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (Fault(status=429, body="null"), "rate_limited"),
        (Fault(status=500, body="null"), "exchange_failed"),
        (Fault(status=200, body="<html>"), "unexpected_answer"),
        (Fault(status=422, body="Failed to deserialize"), "refused"),
    ],
)
def test_a_failing_exchange_is_a_502_with_retry_after(
    agent: Agent, exchange: ExchangeServer, fault: Fault, reason: str
) -> None:
    exchange.faults.add(fault)
    answer = call(agent, "positions")
    assert failure(answer) == (502, "PERPDEX_ERROR")
    details = answer.get_json()["details"]
    assert details["reason"] == reason
    if reason != "refused":
        assert int(answer.headers["Retry-After"]) == details["retry_after_seconds"] > 0
    assert fault.body not in answer.text or fault.body == "null"


def test_an_unreachable_exchange_fails_reads_but_not_previews(offline_agent: Agent) -> None:
    for action in READS:
        assert failure(call(offline_agent, action)) == (502, "PERPDEX_ERROR")
    for action, parameters in WRITES.items():
        body = preview(offline_agent, action, **parameters)
        if action not in {"withdraw", "transfer"}:
            assert body["metadata"] == {"source": "bundled", "as_of": "2026-11-21T00:00:00.000Z"}
    order = preview(offline_agent, "order", **{**ORDER, "symbol": "sol", "amount": "0.019"})
    assert order["payload"]["action"]["orders"][0]["a"] == 5
    unreadable = preview(offline_agent, "cancel_all")
    assert unreadable["payload"]["action"] == {"type": "cancel", "cancels": []}
    assert unreadable["open_orders"] is None
    assert unreadable["open_orders_error"]
    # A symbol in no list is invalid for an action, and undecided for a read.
    assert problem(call(offline_agent, "order", **{**ORDER, "symbol": "kPEPE"}), "symbol")
    assert failure(call(offline_agent, "orderbook", symbol="kPEPE")) == (502, "PERPDEX_ERROR")


def test_the_stored_list_of_markets_is_used_after_a_restart_without_the_exchange(
    build_app: Callable[..., Flask], sqlite_url: str, exchange: ExchangeServer
) -> None:
    before = build_app(sqlite_url, perpdex=adapter_for(exchange.url))
    with before.app_context():
        read(register(before.test_client()), "markets")
    after = build_app(sqlite_url, perpdex=adapter_for(unused_url()))
    with after.app_context():
        agent = register(after.test_client())
        body = preview(agent, "order", symbol="kpepe", side="sell", price="0.0043851", amount="10000.7")
        assert body["metadata"]["source"] == "stored"
        assert body["payload"]["action"]["orders"][0]["a"] == 12
        assert "isolated" in problem(call(agent, "set_leverage", symbol="HPOS", leverage=2), "cross")


def test_a_list_that_cannot_be_stored_is_returned(agent: Agent) -> None:
    with unit_of_work() as session:
        session.execute(text("ALTER TABLE exchange_markets RENAME TO hidden"))
    try:
        body = preview(agent, "order", symbol="ETH", side="buy", price="3000", amount="0.01")
        assert body["metadata"]["source"] == "exchange"
    finally:
        with unit_of_work() as session:
            session.execute(text("ALTER TABLE hidden RENAME TO exchange_markets"))


def test_market_numbers_of_another_network_are_not_used(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, perpdex=adapter_for(unused_url(), network="testnet"))
    with app.app_context():
        agent = register(app.test_client())
        assert failure(call(agent, "order", **ORDER)) == (502, "PERPDEX_ERROR")
        preview(agent, "withdraw", amount="1", destination=DESTINATION)


def test_each_action_returns_the_exact_payload(agent: Agent) -> None:
    shown = {action: preview(agent, action, **parameters)["payload"]["action"] for action, parameters in WRITES.items()}
    limit = {"a": 1, "b": True, "p": "3000", "s": "0.01", "r": False, "t": {"limit": {"tif": "Gtc"}}}
    assert shown["order"] == {"type": "order", "orders": [limit], "grouping": "na"}
    assert list(shown["order"]["orders"][0]) == ["a", "b", "p", "s", "r", "t"]
    assert shown["cancel"] == {"type": "cancel", "cancels": [{"a": 1, "o": 91490955}]}
    assert shown["cancel_all"]["cancels"] == [{"a": 0, "o": 91490942}, {"a": 1, "o": 91490955}]
    assert shown["set_leverage"] == {"type": "updateLeverage", "asset": 1, "isCross": True, "leverage": 5}
    assert list(shown["set_leverage"]) == ["type", "asset", "isCross", "leverage"]
    payment = {"hyperliquidChain": "Testnet", "signatureChainId": "0x66eee", "amount": "10"}
    for action, kind in (("withdraw", "withdraw3"), ("transfer", "usdSend")):
        expected = {"type": kind, "destination": DESTINATION, **payment}
        assert {name: shown[action][name] for name in expected} == expected
    body = preview(agent, "withdraw", **WRITES["withdraw"])
    assert body["payload"]["action"]["time"] == body["payload"]["nonce"]


def test_an_order_that_only_reduces_a_position_says_so_to_the_exchange(agent: Agent) -> None:
    name = "0x000000000000000000000000000000AB"
    for member in ("reduceOnly", "reduce_only"):
        body = preview(agent, "order", **{**ORDER, "side": "sell", member: True, "cloid": name})
        order = body["payload"]["action"]["orders"][0]
        assert (order["r"], order["c"], list(order)) == (True, name.lower(), ["a", "b", "p", "s", "r", "t", "c"])
    small = {**ORDER, "amount": "0.001", "reduceOnly": True}
    assert preview(agent, "order", **small), "the rest of a position may be smaller than any order"
    assert problem(call(agent, "order", **ORDER, reduceOnly=True, reduce_only=False), "reduceOnly")
    assert problem(call(agent, "order", **ORDER, reduceOnly="true"), "reduceOnly")
    assert problem(call(agent, "order", **ORDER, cloid="0xab"), "cloid")


@pytest.mark.parametrize("action", WRITES)
def test_what_an_action_does_not_know_is_named_and_never_dropped(agent: Agent, action: str) -> None:
    for name in ("postOnly", "triggerPx", "grouping", "vaultAddress", "expiresAfter", "builder"):
        answer = call(agent, action, **WRITES[action], **{name: "1"})
        assert "not supported" in problem(answer, name)
        assert preview(agent, action, **WRITES[action], **{name: None}), "null counts as omitted"


def test_what_the_exchange_refuses_for_its_size_is_refused(agent: Agent) -> None:
    assert "below 10 USDC" in problem(call(agent, "order", **{**ORDER, "amount": "0.0033"}), "amount")
    preview(agent, "order", symbol="ETH", side="buy", price="2500", amount="0.004")
    assert "at least 1" in problem(call(agent, "withdraw", amount="0.999999", destination=DESTINATION), "amount")
    preview(agent, "transfer", amount="0.5", destination=DESTINATION)


@pytest.mark.parametrize(
    "destination",
    [
        "0xC02aaA39b223FE8D0A0e5C4F27eAD9083C756Cc2", "0x000000000000000000000000000000000000dEaD",
        "0x" + "0" * 39 + "1", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
    ],
)  # fmt: skip
def test_nothing_is_paid_from_the_exchange_to_an_address_that_keeps_it(agent: Agent, destination: str) -> None:
    for action in ("withdraw", "transfer"):
        message = problem(call(agent, action, amount="10", destination=destination), "destination")
        assert "cannot be recovered" in message
    fields = call(agent, "withdraw", amount="0.5", destination=destination).get_json()["details"]["fields"]
    assert sorted(fields) == ["amount", "destination"]


def test_numbers_off_the_grid_are_rounded_in_favour_of_the_client_and_reported(agent: Agent) -> None:
    sell = preview(agent, "order", symbol="ETH", side="short", price=3000.55, amount="0.01239", tif="ALO")
    assert sell["adjusted"] == {
        "price": {"asked": "3000.55", "used": "3000.6"},
        "amount": {"asked": "0.01239", "used": "0.0123"},
    }
    order = sell["payload"]["action"]["orders"][0]
    assert (order["b"], order["p"], order["s"], order["t"]) == (False, "3000.6", "0.0123", {"limit": {"tif": "Alo"}})
    buy = preview(agent, "order", symbol="ETH", side="long", price="3000.55", amount="0.01")
    assert buy["payload"]["action"]["orders"][0]["p"] == "3000.5"
    assert buy["adjusted"].keys() == {"price"}
    assert "adjusted" not in preview(agent, "order", **ORDER)


def test_an_order_is_cancelled_by_number_or_client_id(agent: Agent) -> None:
    name = "0x000000000000000000000000000000AB"
    for given, cancel in (
        ("18446744073709551615", {"a": 0, "o": 2**64 - 1}),
        (name, {"asset": 0, "cloid": name.lower()}),
    ):
        body = preview(agent, "cancel", symbol="btc", orderId=given)
        assert body["payload"]["action"]["cancels"] == [cancel]
    assert problem(call(agent, "cancel", symbol="BTC", orderId=2**64), "orderId")
    body = preview(agent, "cancel", symbol="btc", cloid=name)
    assert body["payload"]["action"]["cancels"] == [{"asset": 0, "cloid": name.lower()}]
    assert problem(call(agent, "cancel", symbol="BTC", orderId=1, cloid=name), "orderId")


def test_cancelling_all_orders_of_one_market_keeps_the_others(agent: Agent, exchange: ExchangeServer) -> None:
    body = preview(agent, "cancel_all", symbol="eth")
    assert body["payload"]["action"]["cancels"] == [{"a": 1, "o": 91490955}]
    assert body["open_orders"] == 1
    spot = '[{"coin": "@107", "oid": 7}, {"coin": "ETH", "oid": 8}]'
    exchange.faults.add(Fault(type="frontendOpenOrders", status=200, body=spot))
    body = preview(agent, "cancel_all")
    assert body["payload"]["action"]["cancels"] == [{"a": 1, "o": 8}]
    assert body["left_out"] == [7]


def test_an_invalid_parameter_is_named(agent: Agent) -> None:
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("order", {"side": None}, "side"),
        *(("order", {"price": price}, "price") for price in ("0", "-1", "1e3", "0.001", "9" * 30)),
        *(("order", {"amount": amount}, "amount") for amount in ("0.00001", "ten")),
        *(("set_leverage", {"leverage": leverage}, "leverage") for leverage in (0, 26)),
        *(("withdraw", {"amount": amount}, "amount") for amount in ("0", "1.0000001")),
        *(
            ("transfer", {"destination": destination}, "destination")
            for destination in (
                "0x12", "0x" + "0" * 40, "FucZhKbutpcSgSZwfatWy5znxfubhtieJtRS6MJqDKkd",
                "0x5E9ee1089755c3435139848E47e6635505d5A13a",
            )
        ),
    ]  # fmt: skip
    for action, changes, field in wrong:
        assert problem(call(agent, action, **{**WRITES[action], **changes}), field), changes


def test_checks_run_in_order(agent: Agent) -> None:
    client = agent.client
    bad_order = {**ORDER, "price": "x"}
    assert failure(client.post(PATH, json={"action": "nope"})) == (401, "UNAUTHORIZED")
    # 400 for wallet and action before 404, and 404 before 400 for parameters.
    foreign = {"walletId": "5f0f6c1e-3b9c-4f0e-9a55-0d6a6a3c8a10"}
    assert failure(agent.post(PATH, {**foreign, "action": "nope"})) == (400, "INVALID_INPUT")
    assert failure(agent.post(PATH, {**foreign, **bad_order, "action": "order"})) == (404, "NOT_FOUND")
    assert failure(agent.post(PATH, {"walletId": "junk", "action": "ticker"})) == (404, "NOT_FOUND")
    for body in ({}, {"walletId": agent.wallet_id}, {"action": "ticker"}, {"walletId": 1, "action": "ticker"}):
        assert failure(agent.post(PATH, body)) == (400, "INVALID_INPUT")
    # Parameters before limits, limits before 501.
    assert failure(call(agent, "order", **{**bad_order, "amount": "100"})) == (400, "INVALID_INPUT")
    assert failure(call(agent, "order", **{**ORDER, "amount": "100"})) == (403, "PER_TX_LIMIT_EXCEEDED")


def test_limits_apply_to_orders_and_payments_and_nothing_is_counted(agent: Agent) -> None:
    agent.controls(daily_limit_usd=40, per_tx_limit_usd=0)
    exact = {**ORDER, "price": "4000", "amount": "0.01"}
    for _ in range(3):  # nothing is held: the third still fits
        preview(agent, "order", **exact)
    over = call(agent, "order", **{**exact, "price": "4000.1"})
    assert failure(over) == (403, "DAILY_LIMIT_EXCEEDED")
    assert over.get_json()["details"]["requested_usd"] == 40.001
    for action in ("withdraw", "transfer"):
        preview(agent, action, amount="40", destination=DESTINATION)
        answer = call(agent, action, amount="40.000001", destination=DESTINATION)
        assert failure(answer) == (403, "DAILY_LIMIT_EXCEEDED")
    for action in ("cancel", "cancel_all", "set_leverage"):
        preview(agent, action, **WRITES[action])
    assert agent.spent_this_month() == 0


def test_the_allowlist_applies_to_recipients_on_the_exchange(agent: Agent) -> None:
    agent.controls(allowed_addresses=["0x" + "11" * 20])
    for action in ("withdraw", "transfer"):
        assert failure(call(agent, action, **WRITES[action])) == (403, "ADDRESS_NOT_ALLOWED")
        preview(agent, action, amount="1", destination="0x" + "11" * 20)
    preview(agent, "order", **ORDER)  # no recipient


def test_a_frozen_wallet_can_be_read_but_not_act(agent: Agent, exchange: ExchangeServer) -> None:
    with unit_of_work() as session:
        spending_accounts.set_frozen(session, agent.id, frozen=True)
    for action, parameters in WRITES.items():
        assert failure(call(agent, action, **parameters)) == (403, "WALLET_FROZEN")
    assert "frontendOpenOrders" not in kinds_asked(exchange)
    assert read(agent, "positions")["positions"]


def test_public_data_is_requested_once_for_many_agents(agent: Agent, exchange: ExchangeServer) -> None:
    others = [agent, *(register(agent.client) for _ in range(4))]
    for other in others:
        for action in ("ticker", "orderbook", "funding", "markets"):
            read(other, action)
        read(other, "positions")
    asked = kinds_asked(exchange)
    assert asked["metaAndAssetCtxs"] == asked["meta"] == 1
    assert asked["allMids"] < len(others)
    assert asked["l2Book"] < len(others)
    assert asked["clearinghouseState"] == len(others)


def test_one_busy_wallet_is_rate_limited_and_the_others_are_not(agent: Agent) -> None:
    other = register(agent.client)
    served = 0
    while (refused := call(agent, "orders")).status_code == 200:
        served += 1
    assert served >= 9
    assert failure(refused) == (502, "PERPDEX_ERROR")
    assert refused.get_json()["details"]["reason"] == "rate_limited"
    assert 1 <= int(refused.headers["Retry-After"]) <= 10
    read(other, "orders")


def test_all_requests_pause_after_a_429(agent: Agent, exchange: ExchangeServer) -> None:
    other = register(agent.client)
    exchange.faults.add(Fault(status=429, body="null"))
    assert failure(call(agent, "positions")) == (502, "PERPDEX_ERROR")
    asked = len(exchange.queries)
    answer = call(other, "positions")
    assert failure(answer) == (502, "PERPDEX_ERROR")
    assert int(answer.headers["Retry-After"]) >= 5
    assert len(exchange.queries) == asked


def test_no_response_contains_a_signature(agent: Agent) -> None:
    for action, parameters in WRITES.items():
        text = call(agent, action, **parameters).text
        assert '"signature":null' in text.replace(" ", "")
        assert '"r":"0x' not in text


def test_a_signature_of_the_payload_recovers_the_wallet(agent: Agent) -> None:
    # The address in a response is that of the wallet's own key, with which execution would sign.
    from app.adapters.perpdex.exchange import DEPLOYMENTS  # noqa: PLC0415
    from app.wallets.core import custody  # noqa: PLC0415
    from tests.support import exchange_signing as signing  # noqa: PLC0415

    body = preview(agent, "order", **ORDER)
    payload = signing.ActionPayload(body["payload"]["action"], body["payload"]["nonce"])
    digest = signing.digest(payload, deployment=DEPLOYMENTS["sandbox"])
    parity, r, s = custody.signer_of(agent.wallet_id).sign_digest(digest, {})
    recovered = keys.Signature(vrs=(parity, r, s)).recover_public_key_from_msg_hash(digest)
    assert recovered.to_checksum_address() == body["address"]


def test_a_sell_below_the_market_is_valued_at_the_market(agent: Agent, exchange: ExchangeServer) -> None:
    mid = Decimal(read(agent, "ticker")["mids"]["ETH"])
    agent.controls(daily_limit_usd=int(mid * Decimal("0.9") / 100), per_tx_limit_usd=0)
    cheap = {**ORDER, "side": "sell", "price": "1", "amount": "0.01"}
    assert failure(call(agent, "order", **cheap)) == (403, "DAILY_LIMIT_EXCEEDED")
    # A buy never costs more than its own price.
    preview(agent, "order", **{**cheap, "side": "buy", "amount": "10"})
    assert kinds_asked(exchange)["allMids"] == 1


def test_a_value_of_another_type_is_refused_with_what_its_field_takes(agent: Agent) -> None:
    assert "an order's number" in problem(call(agent, "cancel", symbol="ETH", orderId=True), "orderId")
    assert "EVM address" in problem(call(agent, "withdraw", amount="10", destination=["0x1"]), "destination")
