"""The exchange's adapter against the stand-in, and against an exchange that fails or lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from app.core.unit_of_work import UnitError, unit_of_work
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Market, Perpdex, Question, Topic
from sandbox.perpdex import ExchangeServer, Fault
from tests.support.exchange import adapter_for, running_exchange
from tests.support.loopback_http import Reply, serve, unused_url

ADDRESS = "0x05aBA2730949077339d245429f5caDb3930DE157"
UNSEEN = "0x000000aBA2730949077339d245429f5caDb3930D"


@pytest.fixture
def exchange() -> Iterator[ExchangeServer]:
    with running_exchange() as server:
        yield server


def ask(url: str, topic: Topic = Topic.MIDS, **about: str) -> Any:
    port: Perpdex = adapter_for(url)
    return port.ask(Question(topic, **about)).document


def answered(body: bytes, topic: Topic, *, status: int = 200) -> Any:
    with serve(lambda _asked: Reply(body, status)) as server:
        return ask(server.url, topic)


def test_every_question_is_put_as_the_exchange_wants_it(exchange: ExchangeServer) -> None:
    port = adapter_for(exchange.url + "/")
    for topic in Topic:
        address = ADDRESS if topic in {Topic.ACCOUNT, Topic.SPOT, Topic.ORDERS, Topic.FILLS} else None
        port.ask(Question(topic, address=address, symbol="ETH" if topic is Topic.BOOK else None))
    user = ADDRESS.lower()
    assert list(exchange.asked) == [
        {"type": "clearinghouseState", "user": user},
        {"type": "spotClearinghouseState", "user": user},
        {"type": "frontendOpenOrders", "user": user},
        {"type": "userFills", "user": user},
        {"type": "meta"},
        {"type": "metaAndAssetCtxs"},
        {"type": "allMids"},
        {"type": "l2Book", "coin": "ETH"},
    ]


def test_an_account_that_was_never_seen_is_empty_and_no_error(exchange: ExchangeServer) -> None:
    account = ask(exchange.url, Topic.ACCOUNT, address=UNSEEN)
    assert account["assetPositions"] == []
    assert account["withdrawable"] == "0.0"
    assert ask(exchange.url, Topic.FILLS, address=UNSEEN) == []
    assert ask(exchange.url, Topic.ORDERS, address=UNSEEN) == []


def test_numbers_stay_the_texts_that_they_were(exchange: ExchangeServer) -> None:
    assert ask(exchange.url)["kPEPE"] == "0.004385"
    book = ask(exchange.url, Topic.BOOK, symbol="ETH")
    assert book["bids"][4]["px"] == "3000.20"
    assert answered(b'[{"coin": "X", "oid": 18446744073709551615, "share": 0.10}]', Topic.ORDERS) == [
        {"coin": "X", "oid": 2**64 - 1, "share": Decimal("0.10")}
    ]


def test_members_that_nobody_knows_yet_pass_through() -> None:
    fills = [{"coin": "ETH", "px": "1", "builderFee": "0.1", "liquidation": {"method": "market"}}]
    assert answered(json.dumps(fills).encode(), Topic.FILLS) == fills


def test_a_book_of_no_market_is_none(exchange: ExchangeServer) -> None:
    assert ask(exchange.url, Topic.BOOK, symbol="NOPE") is None


def test_markets_are_numbered_by_their_place(exchange: ExchangeServer) -> None:
    port = adapter_for(exchange.url)
    markets = port.markets_in(port.ask(Question(Topic.MARKETS)).document)
    assert markets[1] == Market(1, "ETH", 4, max_leverage=25)
    assert markets[3].is_delisted
    assert markets[13].only_isolated


def test_rates_are_paired_with_their_markets_and_delisted_ones_left_out(exchange: ExchangeServer) -> None:
    rates = ask(exchange.url, Topic.FUNDING)
    assert rates[1] == {
        "symbol": "ETH",
        "funding_rate": "0.0000125",
        "premium": "0.00031774",
        "mark_price": "3000.25",
        "oracle_price": "3000.25",
        "open_interest": "688.11",
    }
    assert "MATIC" not in {rate["symbol"] for rate in rates}


def test_weights_are_the_exchange_s(exchange: ExchangeServer) -> None:
    port = adapter_for(exchange.url)
    light = {Topic.ACCOUNT, Topic.SPOT, Topic.MIDS, Topic.BOOK}
    assert {topic: port.weight_of(Question(topic)) for topic in Topic} == {
        topic: 2 if topic in light else 20 for topic in Topic
    }
    assert port.ask(Question(Topic.FILLS, address=ADDRESS)).surplus_weight == 1
    with serve(lambda _asked: Reply(b"[" + b",".join([b"{}"] * 2000) + b"]")) as server:
        assert adapter_for(server.url).ask(Question(Topic.FILLS)).surplus_weight == 100


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (429, "null", "rate_limited"),
        (500, "null", "exchange_failed"),
        (502, "<html>bad gateway</html>", "exchange_failed"),
        (302, "", "unexpected_answer"),
        (200, "", "unexpected_answer"),
        (200, "<html></html>", "unexpected_answer"),
        (200, '{"BTC": 1}', "unexpected_answer"),
        (200, "[]", "unexpected_answer"),
        (200, "null", "unexpected_answer"),
        (200, '{"BTC": NaN}', "unexpected_answer"),
        (200, "[" * 40 + "]" * 40, "unexpected_answer"),
        (200, "[" * 100_000, "unexpected_answer"),
    ],
)
def test_a_failing_exchange_is_an_outage_and_never_an_answer(
    exchange: ExchangeServer, status: int, body: str, reason: str
) -> None:
    exchange.faults.add(Fault(status=status, body=body))
    with pytest.raises(Unreachable) as failure:
        ask(exchange.url)
    assert failure.value.reason == reason
    assert ask(exchange.url)["ETH"] == "3000.25"


@pytest.mark.parametrize(
    ("topic", "document"),
    [
        (Topic.ACCOUNT, {"assetPositions": None}),
        (Topic.ACCOUNT, []),
        (Topic.SPOT, {"balances": [1]}),
        (Topic.ORDERS, [{"coin": "ETH"}]),
        (Topic.ORDERS, [{"coin": "ETH", "oid": True}]),
        (Topic.ORDERS, [{"coin": "ETH", "oid": -1}]),
        (Topic.FILLS, {"fills": []}),
        (Topic.MARKETS, {"universe": []}),
        (Topic.MARKETS, {"universe": [{"name": "ETH"}]}),
        (Topic.MARKETS, {"universe": [{"name": "ETH", "szDecimals": "4"}]}),
        (Topic.MARKETS, {"universe": [{"name": "ETH", "szDecimals": 40}]}),
        (Topic.MARKETS, {"universe": [{"name": "ETH", "szDecimals": 4, "maxLeverage": 0}]}),
        (Topic.MARKETS, {"universe": [{"name": "", "szDecimals": 4}]}),
        (Topic.FUNDING, [{"universe": [{"name": "ETH", "szDecimals": 4}]}, []]),
        (Topic.FUNDING, {"universe": []}),
        (Topic.BOOK, {"levels": [[]]}),
        (Topic.BOOK, {"levels": [[], [1]]}),
        (Topic.BOOK, {}),
    ],
)
def test_an_answer_of_another_shape_is_not_believed(topic: Topic, document: Any) -> None:
    with pytest.raises(Unreachable, match="unexpected_answer"):
        answered(json.dumps(document).encode(), topic)


def test_a_number_that_json_readers_cannot_hold_is_not_believed() -> None:
    with pytest.raises(Unreachable, match="unexpected_answer"):
        answered(b'[{"coin": "X", "oid": 1, "share": 1e999}]', Topic.ORDERS)


def test_what_the_exchange_does_not_understand_is_a_refusal(exchange: ExchangeServer) -> None:
    with pytest.raises(Rejected, match="refused"):
        ask(exchange.url, Topic.ACCOUNT)  # without an address: 422 in plain text


def test_nobody_there_and_an_answer_that_never_comes_are_outages(exchange: ExchangeServer) -> None:
    with pytest.raises(Unreachable, match="not_sent"):
        ask(unused_url())
    with serve(lambda _asked: Reply(None)) as hangs_up, pytest.raises(Unreachable, match="no_answer"):
        ask(hangs_up.url)
    exchange.faults.add(Fault(hangs=True))
    with pytest.raises(Unreachable, match="no_answer"):
        ask(exchange.url)


def test_the_stand_in_counts_weight_as_the_exchange_does(exchange: ExchangeServer) -> None:
    for _ in range(60):
        ask(exchange.url, Topic.MARKETS)
    with pytest.raises(Unreachable, match="rate_limited"):
        ask(exchange.url, Topic.MARKETS)


def test_markets_ship_for_networks_that_are_numbered_like_them_only() -> None:
    bundled = adapter_for("", network="mainnet").bundled_markets()
    assert bundled is not None
    assert [market.symbol for market in bundled.markets][:6] == ["BTC", "ETH", "ATOM", "MATIC", "DYDX", "SOL"]
    assert bundled.markets[1] == Market(1, "ETH", 4)
    assert adapter_for("", network="testnet").bundled_markets() is None


def test_nobody_asks_the_exchange_while_the_database_waits(exchange: ExchangeServer, app: Any) -> None:
    with app.app_context(), unit_of_work(), pytest.raises(UnitError):
        ask(exchange.url)
