"""Prices by name: suffixes and dates do not change them, and no model gets the price of a cheaper one."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from genai_prices import data_snapshot

from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.response.usage_readers import Usage, UsageReading
from app.gateway.pricing import price_table
from app.gateway.pricing.price_table import Rates
from app.gateway.pricing.quotes import PricedRequest, TokenPrices
from tests.support.provider_rows import read_request

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
OPENROUTER, GOOGLE = TokenPrices("openrouter"), TokenPrices("google")


def params(model: str, dialect: Dialect = Dialect.OPENROUTER) -> CostParams:
    return CostParams(Surface.CHAT, dialect, model, tokens_in=1000, tokens_out=1000)


def priced(rule: TokenPrices, model: str, reported: str = "") -> tuple[int, int]:
    """Return what is held for a call, and what is charged if the response reports only its tokens."""
    asked = params(model, Dialect.OPENROUTER if rule is OPENROUTER else Dialect.OPENAI)
    reading = UsageReading(usage=Usage(1000, 1000), is_complete=True, model=reported or model)
    held = rule.quote(PricedRequest(AT, params=asked)).worst_case.cost_nanos
    return held, rule.settle(asked, reading, AT).cost_nanos


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        *[(f"openai/gpt-4o-mini:{each}", "openai/gpt-4o-mini") for each in ("nitro", "floor", "exacto", "online")],
        ("openai/gpt-4o-mini:nitro:online", "openai/gpt-4o-mini"),
        ("openai/gpt-4o-mini:Online:FLOOR", "openai/gpt-4o-mini"),
        ("anthropic/claude-3.7-sonnet:thinking:nitro", "anthropic/claude-3.7-sonnet:thinking"),
        ("anthropic/claude-3.7-sonnet:nitro:thinking", "anthropic/claude-3.7-sonnet:thinking"),
        ("openai/gpt-5-2025-08-07:nitro", "openai/gpt-5"),
        ("openai/gpt-oss-20b:floor:free", "openai/gpt-oss-20b:free"),
        ("openai/gpt-oss-20b:free:floor", "openai/gpt-oss-20b:free"),
    ],
)  # fmt: skip
def test_a_routing_suffix_costs_what_the_model_costs(name: str, plain: str) -> None:
    assert priced(OPENROUTER, name) == priced(OPENROUTER, plain) == priced(OPENROUTER, name, reported=plain)
    assert (priced(OPENROUTER, name)[1] == 0) == plain.endswith(":free")


def test_other_suffixes_and_other_providers_do_not_get_the_price_of_the_plain_name() -> None:
    for name in ("openai/gpt-4o-mini:tomorrow", "openai/gpt-4o-mini:nitro:tomorrow", "openrouter/auto"):
        assert priced(OPENROUTER, name)[1] > 100 * priced(OPENROUTER, "openai/gpt-4o-mini")[1]
    assert priced(TokenPrices("openai"), "gpt-4o-mini:nitro")[1] > priced(TokenPrices("openai"), "gpt-4o-mini")[1]


@pytest.mark.parametrize("model", ["openai/gpt-5:online", "openai/gpt-5:online:nitro", "openai/gpt-5:nitro:ONLINE"])
def test_the_online_suffix_holds_searches_like_the_web_plugin(model: str) -> None:
    def call(**body: Any) -> CostParams:
        raw = json.dumps({"max_tokens": 9, **body}).encode()
        return read_request(Dialect.OPENROUTER, "POST", "chat/completions", body=raw)

    plugin = call(model="openai/gpt-5", plugins=[{"id": "web"}])
    held = [
        OPENROUTER.quote(PricedRequest(AT, params=each)).worst_case.cost_nanos for each in (plugin, call(model=model))
    ]
    assert held[0] > 10 * 1_000_000
    assert abs(held[0] - held[1]) < 100_000
    free = call(model="openai/gpt-oss-20b:free:online")
    assert OPENROUTER.quote(PricedRequest(AT, params=free)).worst_case.cost_nanos > 0


@pytest.mark.parametrize(
    ("table", "name", "alias"),
    [
        ("openai", "gpt-5-search-api-2025-10-14", "gpt-5-search-api"), ("openai", "gpt-4-0613", "gpt-4"),
        ("openai", "gpt-5-pro-2027-01-01", "gpt-5-pro"), ("openai", "gpt-5-20270101", "gpt-5"),
        ("openai", "gpt-5@2025-08-07", "gpt-5"), ("openai", "GPT-5-2027-01-01", "gpt-5"),
        ("openai", "gpt-4o-20240513", "gpt-4o-2024-05-13"), ("openai", "gpt-image-1-2025-04-23", "gpt-image-1"),
        ("openai", "ft:gpt-4o-mini-2024-07-18:org::id", "ft:gpt-4o-mini-2024-07-18"),
        ("anthropic", "claude-sonnet-4-5-20270101", "claude-sonnet-4-5"),
        ("anthropic", "claude-haiku-4-5@20251001", "claude-haiku-4-5"),
        ("anthropic", "claude-sonnet-4-20250514", "claude-sonnet-4-0"),
        ("anthropic", "claude-opus-4-1-latest", "claude-opus-4-1"),
        ("google", "gemini-2.5-flash-001", "gemini-2.5-flash"),
        ("google", "gemini-2.5-flash-preview-12-2026", "gemini-2.5-flash"),
        ("google", "gemini-2.5-pro-preview-06-05", "gemini-2.5-pro"),
        ("google", "gemini-3-pro-preview-11-2026", "gemini-3-pro-preview"),
        ("groq", "openai/gpt-oss-120b-0905", "openai/gpt-oss-120b"), ("groq", "qwen/qwen3-32b-2507", "qwen/qwen3-32b"),
    ],
)  # fmt: skip
def test_a_snapshot_costs_what_its_alias_costs(table: str, name: str, alias: str) -> None:
    found, expected = price_table.find_model(table, name), price_table.find_model(table, alias)
    assert found is not None
    assert expected is not None
    assert found.rates(AT, 1000) == expected.rates(AT, 1000)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        ("openai", "gpt-5-ultra"), ("openai", "gpt-5-ultra-2027-01-01"), ("openai", "gpt-5-2027-01-01-pro"),
        ("openai", "gpt-4o-mini-realtime-max"), ("openai", "gpt-5-2027"), ("openai", "ft:gpt-4.1-2025-04-14:org::id"),
        ("openai", "gpt-6-moderation"), ("openai", "gpt-5-13-32"),
        ("anthropic", "claude-opus-4-10"), ("anthropic", "claude-sonnet-4-5-ultra"),
        ("anthropic", "claude-haiku-4-5-1"),
        ("google", "gemini-2.5-pro-ultra"), ("google", "gemini-2.5-pro-image"), ("google", "gemini-3.6-flash-pro-001"),
        ("google", "gemma-3-pro"), ("groq", "openai/gpt-oss-120b-pro"),
    ],
)  # fmt: skip
def test_a_longer_name_is_not_priced_as_the_model_that_it_begins_with(table: str, name: str) -> None:
    assert price_table.find_model(table, name) is None
    assert TokenPrices(table).rates_for(name, AT, 1000)[1] == "fallback"


def test_each_model_of_the_table_is_found_by_its_own_name() -> None:
    for table in ("openai", "anthropic", "google", "groq", "openrouter"):
        providers = {each.id: each for each in data_snapshot.get_snapshot().providers}
        for model in providers[table].models:
            found = price_table.find_model(table, model.id)
            expected = providers[table].find_model(model.id, all_providers=list(providers.values()))
            assert (found and found.model) is expected


def test_a_price_of_zero_is_a_price() -> None:
    assert priced(GOOGLE, "gemma-3-27b-it") == (0, 0)
    given = TokenPrices(
        "openai",
        models={
            "free-1": Rates(input=Decimal(0), output=Decimal(0)),
            "half-1": Rates(input=Decimal(0), output=Decimal(7)),
            "searching-1": Rates(search=Decimal(5)),
        },
    )
    assert priced(given, "free-1") == (0, 0)
    assert priced(given, "free-1-2027-01-01") == (0, 0)
    assert priced(given, "half-1") == (7_000, 7_000)
    # Nothing is known about its tokens.
    assert priced(given, "searching-1") == (30_000_000, 30_000_000)


def test_a_model_without_a_token_price_in_another_list_is_not_free() -> None:
    # OpenRouter's own list leaves out what it bills in another way.
    assert min(priced(OPENROUTER, "google/lyria-3-pro-preview")) > 0
    assert min(priced(TokenPrices("openai"), "whisper-1")) >= 0
    assert priced(TokenPrices("openai"), "gpt-live-1")[1] > 0
