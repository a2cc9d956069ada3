"""Hyperliquid's `POST /info` as its documentation and its package describe it.

Read on 2026-11-23: https://hyperliquid.gitbook.io/hyperliquid-docs/for-developers/api/info-endpoint and
…/rate-limits-and-user-limits (weights, quoted by https://docs.rs/crate/guilder-client-hyperliquid), the types of
`hyperliquid-python-sdk` 0.24.0 (`utils/types.py`, `api.py`: 4xx in JSON or text, 5xx in text).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from app.ports.errors import Rejected, Unreachable
from app.ports.perpdex import PerpdexQuery, PerpdexTopic, PerpMarket
from tests.support.exchange import adapter_for
from tests.support.loopback_http import Reply, serve

OWNER = "0x05ABa2730949077339d245429f5caDb3930DE157"
META: dict[str, Any] = {
    "universe": [
        {"name": "BTC", "szDecimals": 5, "maxLeverage": 40, "marginTableId": 56},
        {"name": "HPOS", "szDecimals": 0, "maxLeverage": 3, "onlyIsolated": True, "isDelisted": True},
        {"name": "kPEPE", "szDecimals": 0, "maxLeverage": 10, "marginMode": "strictIsolated"},
    ],
    "marginTables": [[50, {"description": "", "marginTiers": [{"lowerBound": "0.0", "maxLeverage": 50}]}]],
    "collateralToken": 0,
}
CONTEXT = {
    "dayNtlVlm": "1169046.29406", "funding": "0.0000125", "impactPxs": ["14.3047", "14.3444"], "markPx": "14.3161",
    "midPx": "14.314", "openInterest": "688.11", "oraclePx": "14.32", "premium": "0.00031774",
    "prevDayPx": "15.322", "dayBaseVlm": "80000.1",
}  # fmt: skip
# A delisted market has no middle, no impact prices and no premium.
GONE = CONTEXT | {"midPx": None, "impactPxs": None, "premium": None}
STATE = {
    "assetPositions": [
        {
            "type": "oneWay",
            "position": {
                "coin": "ETH", "szi": "0.0335", "entryPx": "2986.3", "positionValue": "100.02765",
                "unrealizedPnl": "-0.0134", "returnOnEquity": "-0.0026789", "marginUsed": "4.967826",
                "leverage": {"type": "isolated", "value": 20, "rawUsd": "-95.059824"}, "maxLeverage": 50,
                "liquidationPx": None, "cumFunding": {"allTime": "514.1", "sinceOpen": "0.0", "sinceChange": "0.0"},
            },
        }
    ],
    "crossMaintenanceMarginUsed": "0.0", "withdrawable": "13104.514502", "time": 1708622398623,
    "marginSummary": {
        "accountValue": "13109.482328", "totalMarginUsed": "4.967826", "totalNtlPos": "100.02765", "totalRawUsd": "1.0",
    },
}  # fmt: skip
ORDER = {
    "coin": "BTC", "limitPx": "29792.0", "oid": 91490942, "side": "A", "sz": "5.0", "timestamp": 1681247412573,
    "isTrigger": False, "triggerCondition": "N/A", "triggerPx": "0.0", "children": [], "reduceOnly": False,
    "orderType": "Limit", "origSz": "5.0", "tif": "Gtc", "cloid": None, "isPositionTpsl": False,
}  # fmt: skip
FILL = {
    "coin": "AVAX", "px": "18.435", "sz": "93.53", "side": "B", "time": 1681222254710, "startPosition": "26.86",
    "dir": "Open Long", "closedPnl": "0.0", "hash": "0xa166", "oid": 90542681, "crossed": False, "fee": "0.01",
    "tid": 118906512037719, "feeToken": "USDC", "builderFee": "0.01", "twapId": None,
}  # fmt: skip
BOOK = {"coin": "BTC", "time": 1754450974231, "levels": [[{"px": "113377.0", "sz": "7.6", "n": 17}], []]}

ANSWERS: list[tuple[PerpdexTopic, Any, Any]] = [
    (PerpdexTopic.ACCOUNT, STATE, STATE),
    (
        PerpdexTopic.SPOT,
        {"balances": [{"coin": "USDC", "token": 0, "hold": "0.0", "total": "14.625485", "entryNtl": "0.0"}]},
        {"balances": [{"coin": "USDC", "token": 0, "hold": "0.0", "total": "14.625485", "entryNtl": "0.0"}]},
    ),
    (PerpdexTopic.ORDERS, [ORDER], [ORDER]),
    (PerpdexTopic.FILLS, [FILL], [FILL]),
    (PerpdexTopic.MARKETS, META, META),
    (PerpdexTopic.MIDS, {"APE": "4.33245", "@1": "18.21435"}, {"APE": "4.33245", "@1": "18.21435"}),
    (
        PerpdexTopic.FUNDING,
        [META, [CONTEXT, GONE, CONTEXT]],
        [
            {
                "symbol": symbol, "funding_rate": "0.0000125", "premium": "0.00031774", "mark_price": "14.3161",
                "oracle_price": "14.32", "open_interest": "688.11",
            }
            for symbol in ("BTC", "kPEPE")
        ],
    ),
    (
        PerpdexTopic.BOOK,
        BOOK,
        {"bids": BOOK["levels"][0], "asks": [], "time": BOOK["time"]},  # type: ignore[index]
    ),
    (PerpdexTopic.BOOK, None, None),
]  # fmt: skip


@pytest.mark.parametrize(("topic", "body", "document"), ANSWERS)
def test_documented_answers_are_read(topic: PerpdexTopic, body: Any, document: Any) -> None:
    with serve(lambda _asked: Reply(json.dumps(body).encode())) as server:
        reply = adapter_for(server.url).fetch(PerpdexQuery(topic, address=OWNER, symbol="BTC"))
    assert reply.document == document


def test_markets_are_numbered_by_their_place() -> None:
    assert adapter_for("http://127.0.0.1:1").parse_markets(META) == (
        PerpMarket(0, "BTC", 5, max_leverage=40),
        PerpMarket(1, "HPOS", 0, max_leverage=3, only_isolated=True, is_delisted=True),
        PerpMarket(2, "kPEPE", 0, max_leverage=10, only_isolated=True),
    )


@pytest.mark.parametrize(
    ("status", "body", "failure", "reason"),
    [
        (422, b"Failed to deserialize the JSON body into the target type", Rejected, "refused"),
        (400, b'{"code": 1, "msg": "bad request"}', Rejected, "refused"),
        (429, b"null", Unreachable, "rate_limited"),
        (500, b"null", Unreachable, "exchange_failed"),
        (502, b"<html>", Unreachable, "exchange_failed"),
    ],
)
def test_errors_are_refusals_or_outages(status: int, body: bytes, failure: type[Exception], reason: str) -> None:
    with serve(lambda _asked: Reply(body, status)) as server, pytest.raises(failure, match=reason):
        adapter_for(server.url).fetch(PerpdexQuery(PerpdexTopic.MIDS))


@pytest.mark.parametrize(
    ("topic", "weight"),
    [
        (PerpdexTopic.BOOK, 2),
        (PerpdexTopic.MIDS, 2),
        (PerpdexTopic.ACCOUNT, 2),
        (PerpdexTopic.SPOT, 2),
        (PerpdexTopic.MARKETS, 20),
        (PerpdexTopic.FUNDING, 20),
        (PerpdexTopic.ORDERS, 20),
        (PerpdexTopic.FILLS, 20),
    ],
)
def test_weights_are_the_documented_ones(topic: PerpdexTopic, weight: int) -> None:
    assert adapter_for("http://127.0.0.1:1").query_weight(PerpdexQuery(topic)) == weight


@pytest.mark.parametrize(("fills", "weight"), [(0, 0), (1, 1), (20, 1), (21, 2), (2000, 100)])
def test_fills_weigh_one_more_for_each_twenty(fills: int, weight: int) -> None:
    with serve(lambda _asked: Reply(json.dumps([FILL] * fills).encode())) as server:
        reply = adapter_for(server.url).fetch(PerpdexQuery(PerpdexTopic.FILLS, address=OWNER))
    assert reply.surplus_weight == weight
