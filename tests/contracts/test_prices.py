"""CoinGecko's and Jupiter's prices as their documentation describes them.

Read on 2026-11-23: https://docs.coingecko.com/docs/errors-and-rate-limits (statuses, codes, plans),
https://docs.coingecko.com/reference/authentication, https://docs.coingecko.com/reference/simple-price,
https://dev.jup.ag/api-reference/price/v3/price, https://dev.jup.ag/docs/portal/rate-limits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import time_machine
from structlog.testing import capture_logs

from app.adapters.prices import CoinGeckoPrices, JupiterPrices
from app.config import Settings
from app.core.chains import ETH, SOL
from app.gateway.providers.configured import load_table
from app.ports.errors import Unreachable
from tests.support.applications import settings_for
from tests.support.loopback_http import Reply, serve

NOW = 1_790_000_000
SOL_MINT = "So11111111111111111111111111111111111111112"
ETH_MINT = "7vfCXTUXx5WJV5JADk17DUJ4ksgau7utNKj4b963voxs"


def _read(source: Any, body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Any:
    with serve(lambda _asked: Reply(json.dumps(body).encode(), status, headers or {})) as server:
        with time_machine.travel(NOW, tick=False), capture_logs():
            prices = source(server.url).read()
        return prices, server.asked[0]


def _coingecko(url: str) -> CoinGeckoPrices:
    return CoinGeckoPrices(f"{url}/api/v3", api_key="CG-key")


def test_coingecko_is_asked_for_the_age_and_the_full_precision() -> None:
    body = {
        "ethereum": {"usd": 3000.123456789, "last_updated_at": NOW - 60},
        "solana": {"usd": 147.48, "last_updated_at": NOW - 600},
    }
    prices, asked = _read(_coingecko, body)
    assert prices == {ETH: 3_000_123_456_789, SOL: 147_480_000_000}
    address = urlsplit(asked.target)
    assert (address.path, parse_qs(address.query)) == (
        "/api/v3/simple/price",
        {
            "ids": ["ethereum,solana"],
            "vs_currencies": ["usd"],
            "include_last_updated_at": ["true"],
            "precision": ["full"],
        },
    )
    assert asked.headers["x-cg-demo-api-key"] == "CG-key"


@pytest.mark.parametrize(
    ("base_url", "header"),
    [
        ("https://api.coingecko.com/api/v3", "x-cg-demo-api-key"),
        ("https://pro-api.coingecko.com/api/v3", "x-cg-pro-api-key"),
    ],
)
def test_each_plan_has_its_own_host_and_header(base_url: str, header: str) -> None:
    settings: Settings = settings_for("sqlite://", coingecko_base_url=base_url, coingecko_api_key="CG-key")
    row = load_table(settings).find("coingecko")
    assert row.credential_headers() == {header: "CG-key"}
    assert CoinGeckoPrices(base_url, api_key="CG-key")._headers == {header: "CG-key"}


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (429, {"status": {"error_code": 429, "error_message": "You've exceeded the Rate Limit."}}),
        (401, {"status": {"error_code": 10002, "error_message": "API Key Missing"}}),
        (400, {"error_code": 10010, "status": {"error_message": "If you are using Pro API key, change your root URL"}}),
        (
            400,
            {"error_code": 10011, "status": {"error_message": "If you are using Demo API key, change your root URL"}},
        ),
        (403, {"error": "Forbidden"}),
        (500, {"error": "Internal Server Error"}),
        (503, {"error": "Service Unavailable"}),
    ],
)
def test_an_error_of_coingecko_is_an_outage(status: int, body: object) -> None:
    with pytest.raises(Unreachable, match=f"http_{status}"):
        _read(_coingecko, body, status, {"Retry-After": "60"})


@pytest.mark.parametrize(
    "entry",
    [
        {"usd": 3000, "last_updated_at": NOW - 601},
        {"usd": 3000, "last_updated_at": None},
        {"usd": 3000},
        {"usd": None, "last_updated_at": NOW},
        {},
    ],
)
def test_a_price_without_a_recent_time_is_no_price(entry: object) -> None:
    assert _read(_coingecko, {"ethereum": entry})[0] == {}


def test_jupiter_prices_have_their_own_members_and_omit_unreliable_tokens() -> None:
    entry = {
        "createdAt": "2024-06-05T08:55:25.527Z", "liquidity": 621679197.67, "usdPrice": 147.4789465909,
        "blockId": 348004023, "decimals": 9, "priceChange24h": 1.29,
    }  # fmt: skip
    prices, asked = _read(JupiterPrices, {SOL_MINT: entry})
    assert prices == {SOL: 147_478_946_591}
    assert parse_qs(urlsplit(asked.target).query) == {"ids": [f"{SOL_MINT},{ETH_MINT}"]}
    assert _read(JupiterPrices, {SOL_MINT: None, ETH_MINT: entry | {"usdPrice": 3000}})[0] == {ETH: 3 * 10**12}


def test_a_limit_of_jupiter_is_an_outage() -> None:
    body = {"code": 429, "message": "Rate limit exceeded"}
    with pytest.raises(Unreachable, match="rate_limited"):
        _read(JupiterPrices, body, 429, {"Retry-After": "60"})


@pytest.mark.parametrize("status", [400, 401, 500])
def test_an_error_of_jupiter_is_an_outage(status: int) -> None:
    with pytest.raises(Unreachable, match=f"http_{status}"):
        _read(JupiterPrices, {"code": status, "message": "An error"}, status)
