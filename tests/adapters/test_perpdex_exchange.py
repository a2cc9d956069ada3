"""The exchange's adapter against the stand-in, and against a failing or malformed exchange."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from app.db.unit_of_work import UnitError, unit_of_work
from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import Perpdex, PerpdexQuery, PerpdexTopic, PerpMarket
from sandbox.perpdex import ExchangeServer, Fault
from tests.support.exchange import adapter_for, running_exchange
from tests.support.loopback_http import Reply, serve, unused_url

ADDRESS = "0x05aBA2730949077339d245429f5caDb3930DE157"
UNSEEN = "0x000000aBA2730949077339d245429f5caDb3930D"


@pytest.fixture
def exchange() -> Iterator[ExchangeServer]:
    with running_exchange() as server:
        yield server


def query(url: str, topic: PerpdexTopic = PerpdexTopic.MIDS, **about: str) -> Any:
    port: Perpdex = adapter_for(url)
    return port.fetch(PerpdexQuery(topic, **about)).document


def answered(body: bytes, topic: PerpdexTopic, *, status: int = 200) -> Any:
    with serve(lambda _asked: Reply(body, status)) as server:
        return query(server.url, topic)


def test_every_query_has_the_documented_form(exchange: ExchangeServer) -> None:
    port = adapter_for(exchange.url + "/")
    for topic in PerpdexTopic:
        address = (
            ADDRESS
            if topic in {PerpdexTopic.ACCOUNT, PerpdexTopic.SPOT, PerpdexTopic.ORDERS, PerpdexTopic.FILLS}
            else None
        )
        port.fetch(PerpdexQuery(topic, address=address, symbol="ETH" if topic is PerpdexTopic.BOOK else None))
    user = ADDRESS.lower()
    assert list(exchange.queries) == [
        {"type": "clearinghouseState", "user": user},
        {"type": "spotClearinghouseState", "user": user},
        {"type": "frontendOpenOrders", "user": user},
        {"type": "userFills", "user": user},
        {"type": "meta"},
        {"type": "metaAndAssetCtxs"},
        {"type": "allMids"},
        {"type": "l2Book", "coin": "ETH"},
    ]


def test_an_unknown_account_is_empty(exchange: ExchangeServer) -> None:
    account = query(exchange.url, PerpdexTopic.ACCOUNT, address=UNSEEN)
    assert account["assetPositions"] == []
    assert account["withdrawable"] == "0.0"
    assert query(exchange.url, PerpdexTopic.FILLS, address=UNSEEN) == []
    assert query(exchange.url, PerpdexTopic.ORDERS, address=UNSEEN) == []


def test_numbers_keep_their_spelling(exchange: ExchangeServer) -> None:
    assert query(exchange.url)["kPEPE"] == "0.004385"
    book = query(exchange.url, PerpdexTopic.BOOK, symbol="ETH")
    assert book["bids"][4]["px"] == "3000.20"
    assert answered(b'[{"coin": "X", "oid": 18446744073709551615, "share": 0.10}]', PerpdexTopic.ORDERS) == [
        {"coin": "X", "oid": 2**64 - 1, "share": Decimal("0.10")}
    ]


def test_unknown_members_are_returned() -> None:
    fills = [{"coin": "ETH", "px": "1", "builderFee": "0.1", "liquidation": {"method": "market"}}]
    assert answered(json.dumps(fills).encode(), PerpdexTopic.FILLS) == fills


def test_the_order_book_of_an_unknown_market_is_none(exchange: ExchangeServer) -> None:
    assert query(exchange.url, PerpdexTopic.BOOK, symbol="NOPE") is None


def test_markets_are_numbered_by_their_place(exchange: ExchangeServer) -> None:
    port = adapter_for(exchange.url)
    markets = port.parse_markets(port.fetch(PerpdexQuery(PerpdexTopic.MARKETS)).document)
    assert markets[1] == PerpMarket(1, "ETH", 4, max_leverage=25)
    assert markets[3].is_delisted
    assert markets[13].only_isolated


def test_rates_are_paired_with_their_markets_and_delisted_ones_left_out(exchange: ExchangeServer) -> None:
    rates = query(exchange.url, PerpdexTopic.FUNDING)
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
    light = {PerpdexTopic.ACCOUNT, PerpdexTopic.SPOT, PerpdexTopic.MIDS, PerpdexTopic.BOOK}
    assert {topic: port.query_weight(PerpdexQuery(topic)) for topic in PerpdexTopic} == {
        topic: 2 if topic in light else 20 for topic in PerpdexTopic
    }
    assert port.fetch(PerpdexQuery(PerpdexTopic.FILLS, address=ADDRESS)).surplus_weight == 1
    with serve(lambda _asked: Reply(b"[" + b",".join([b"{}"] * 2000) + b"]")) as server:
        assert adapter_for(server.url).fetch(PerpdexQuery(PerpdexTopic.FILLS)).surplus_weight == 100


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
def test_a_failing_exchange_is_an_outage(exchange: ExchangeServer, status: int, body: str, reason: str) -> None:
    exchange.faults.add(Fault(status=status, body=body))
    with pytest.raises(Unreachable) as failure:
        query(exchange.url)
    assert failure.value.reason == reason
    assert query(exchange.url)["ETH"] == "3000.25"


@pytest.mark.parametrize(
    ("topic", "document"),
    [
        (PerpdexTopic.ACCOUNT, {"assetPositions": None}),
        (PerpdexTopic.ACCOUNT, []),
        (PerpdexTopic.SPOT, {"balances": [1]}),
        (PerpdexTopic.ORDERS, [{"coin": "ETH"}]),
        (PerpdexTopic.ORDERS, [{"coin": "ETH", "oid": True}]),
        (PerpdexTopic.ORDERS, [{"coin": "ETH", "oid": -1}]),
        (PerpdexTopic.FILLS, {"fills": []}),
        (PerpdexTopic.MARKETS, {"universe": []}),
        (PerpdexTopic.MARKETS, {"universe": [{"name": "ETH"}]}),
        (PerpdexTopic.MARKETS, {"universe": [{"name": "ETH", "szDecimals": "4"}]}),
        (PerpdexTopic.MARKETS, {"universe": [{"name": "ETH", "szDecimals": 40}]}),
        (PerpdexTopic.MARKETS, {"universe": [{"name": "ETH", "szDecimals": 4, "maxLeverage": 0}]}),
        (PerpdexTopic.MARKETS, {"universe": [{"name": "", "szDecimals": 4}]}),
        (PerpdexTopic.FUNDING, [{"universe": [{"name": "ETH", "szDecimals": 4}]}, []]),
        (PerpdexTopic.FUNDING, {"universe": []}),
        (PerpdexTopic.BOOK, {"levels": [[]]}),
        (PerpdexTopic.BOOK, {"levels": [[], [1]]}),
        (PerpdexTopic.BOOK, {}),
    ],
)
def test_a_response_of_another_shape_is_refused(topic: PerpdexTopic, document: Any) -> None:
    with pytest.raises(Unreachable, match="unexpected_answer"):
        answered(json.dumps(document).encode(), topic)


def test_an_out_of_range_number_is_refused() -> None:
    with pytest.raises(Unreachable, match="unexpected_answer"):
        answered(b'[{"coin": "X", "oid": 1, "share": 1e999}]', PerpdexTopic.ORDERS)


def test_a_query_that_the_exchange_rejects_is_a_refusal(exchange: ExchangeServer) -> None:
    with pytest.raises(Rejected, match="refused"):
        query(exchange.url, PerpdexTopic.ACCOUNT)  # without an address: 422 in plain text


def test_an_absent_and_a_silent_exchange_are_outages(exchange: ExchangeServer) -> None:
    with pytest.raises(Unreachable, match="not_sent"):
        query(unused_url())
    with serve(lambda _asked: Reply(None)) as hangs_up, pytest.raises(Unreachable, match="no_answer"):
        query(hangs_up.url)
    exchange.faults.add(Fault(hangs=True))
    with pytest.raises(Unreachable, match="no_answer"):
        query(exchange.url)


def test_the_stand_in_counts_weight_as_the_exchange_does(exchange: ExchangeServer) -> None:
    for _ in range(60):
        query(exchange.url, PerpdexTopic.MARKETS)
    with pytest.raises(Unreachable, match="rate_limited"):
        query(exchange.url, PerpdexTopic.MARKETS)


def test_markets_ship_for_networks_that_are_numbered_like_them_only() -> None:
    bundled = adapter_for("", network="mainnet").bundled_markets()
    assert bundled is not None
    assert [market.symbol for market in bundled[1]][:6] == ["BTC", "ETH", "ATOM", "MATIC", "DYDX", "SOL"]
    assert bundled[1][1] == PerpMarket(1, "ETH", 4)
    assert adapter_for("", network="testnet").bundled_markets() is None


def test_the_exchange_is_not_queried_inside_a_unit_of_work(exchange: ExchangeServer, app: Any) -> None:
    with app.app_context(), unit_of_work(), pytest.raises(UnitError):
        query(exchange.url)
