"""Charges: documented example responses of the providers, with the cost of each by the public price list.

The numbers are those of the pages named, the texts are not. A cost is exact, to the nano-dollar, or higher by the
rule in its comment. Prices are those of November 2026.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.gateway.dialects.request.cost_params import Dialect
from app.gateway.pricing.quotes import TokenPrices
from app.gateway.providers.table import PriceRow
from tests.support.provider_rows import FORM, form_of, read_request
from tests.support.recordings import wav
from tests.support.response_readers import reader_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
TABLES = {
    Dialect.OPENAI: "openai",
    Dialect.ANTHROPIC: "anthropic",
    Dialect.GEMINI: "google",
    Dialect.OPENROUTER: "openrouter",
    Dialect.GROQ: "groq",
}


def charged(
    dialect: Dialect, path: str, asked: Any, reported: Any, rule: TokenPrices | None = None, *, events: bool = False
) -> int:
    body, content_type = json.dumps(asked).encode(), "application/json"
    if path == "audio/transcriptions":
        parts = [(name, str(value).encode()) for name, value in asked.items()]
        body, content_type = form_of(*parts, ('file; filename="a.wav"', wav(1))), FORM
    params = read_request(dialect, "POST", path, body=body, content_type=content_type)
    answer = reader_of(params, status=200, content_type="text/event-stream" if events else "application/json")
    if events:
        for event in reported:
            answer.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    else:
        answer.feed(json.dumps(reported).encode())
    answer.flush()
    prices = rule or TokenPrices(TABLES[dialect])
    return prices.settle(params, answer.finish(), AT).cost_nanos


def message(model: str, **usage: Any) -> dict[str, Any]:
    return {"type": "message", "model": model, "content": [], "usage": usage}


COMPACTION = {"type": "compaction", "input_tokens": 180_000, "output_tokens": 3_500}
ADVISOR = {"type": "advisor_message", "model": "claude-opus-4-8", "input_tokens": 100_000, "output_tokens": 10_000}
OPUS, HAIKU, SONNET = "claude-opus-4-8", "claude-haiku-4-5", "claude-sonnet-4-5"


def round_of(tokens_in: int, tokens_out: int, **more: Any) -> dict[str, Any]:
    return {"type": "message", "input_tokens": tokens_in, "output_tokens": tokens_out, **more}


# platform.claude.com: "Compaction", "Advisor tool", "Prompt caching", "Data residency", "Fast mode", "Pricing".
# In nano-dollars a token: Opus 4.8 and 5: 5 000 in, 25 000 out; Haiku 4.5: 1 000, 5 000; Sonnet 4.5: 3 000, 15 000,
# above 200 000 tokens 6 000, 22 500. Cache: read 0.1, written for five minutes 1.25, for an hour 2 times the input.
@pytest.mark.parametrize(
    ("asked", "reported", "nanos"),
    [
        (
            {},
            message(OPUS, input_tokens=23_000, output_tokens=1_000, iterations=[COMPACTION, round_of(23_000, 1_000)]),
            203_000 * 5_000 + 4_500 * 25_000,
        ),
        # A stream that reports only the summary: the other counts do not include it.
        (
            {},
            message(OPUS, input_tokens=23_000, output_tokens=1_000, iterations=[COMPACTION]),
            203_000 * 5_000 + 4_500 * 25_000,
        ),
        # An unknown kind of iteration is billed as well.
        (
            {},
            message(OPUS, input_tokens=10, output_tokens=1, iterations=[{**COMPACTION, "type": "dream"}]),
            180_010 * 5_000 + 3_501 * 25_000,
        ),
        (
            {},
            message(HAIKU, input_tokens=412, output_tokens=89, iterations=[round_of(412, 89), ADVISOR]),
            412 * 1_000 + 89 * 5_000 + 100_000 * 5_000 + 10_000 * 25_000,
        ),
        # Each round of a tool loop is a separate prompt: two of 150 000 are not one of 300 000.
        (
            {},
            message(
                SONNET,
                input_tokens=300_000,
                output_tokens=200,
                iterations=[round_of(150_000, 100), round_of(150_000, 100)],
            ),
            300_000 * 3_000 + 200 * 15_000,
        ),
        ({}, message(SONNET, input_tokens=300_000, output_tokens=200), 300_000 * 6_000 + 200 * 22_500),
        # Rounds that do not add up to the counts are ignored.
        (
            {},
            message(SONNET, input_tokens=300_000, output_tokens=200, iterations=[round_of(1, 1)]),
            300_000 * 6_000 + 200 * 22_500,
        ),
        # A fallback model that served the answer, after the first one had declined.
        (
            {"fallbacks": [{"model": OPUS}]},
            message(
                HAIKU,
                input_tokens=200,
                output_tokens=51,
                iterations=[
                    round_of(100, 1, model=HAIKU),
                    {**round_of(100, 50, model=OPUS), "type": "fallback_message"},
                ],
            ),
            100 * 1_000 + 1 * 5_000 + 100 * 5_000 + 50 * 25_000,
        ),
        (
            {},
            message(
                SONNET,
                input_tokens=2_048,
                output_tokens=503,
                cache_read_input_tokens=1_800,
                cache_creation_input_tokens=556,
                cache_creation={"ephemeral_5m_input_tokens": 456, "ephemeral_1h_input_tokens": 100},
            ),
            2_048 * 3_000 + 1_800 * 300 + 456 * 3_750 + 100 * 6_000 + 503 * 15_000,
        ),
        # 1.1 times in the United States, chosen by the request or by the default of the account.
        (
            {"inference_geo": "us"},
            message("claude-opus-5", input_tokens=1_000, output_tokens=1_000, inference_geo="us"),
            33_000_000,
        ),
        ({}, message("claude-opus-5", input_tokens=1_000, output_tokens=1_000, inference_geo="us"), 33_000_000),
        ({"inference_geo": "us"}, message("claude-opus-5", input_tokens=1_000, output_tokens=1_000), 33_000_000),
        ({}, message("claude-opus-5", input_tokens=1_000, output_tokens=1_000, inference_geo="global"), 30_000_000),
        ({}, message(HAIKU, input_tokens=1_000, output_tokens=1_000, inference_geo="not_available"), 6_000_000),
        # Searches cost 10 USD per 1 000, in every region.
        (
            {"tools": [{"type": "web_search_20260318", "name": "web_search"}]},
            message(
                "claude-opus-5",
                input_tokens=105,
                output_tokens=100,
                inference_geo="us",
                server_tool_use={"web_search_requests": 1, "web_fetch_requests": 2},
            ),
            (105 * 5_000 + 100 * 25_000) * 11 // 10 + 10_000_000,
        ),
        # Fast mode: twice the rates of Opus 5, which has its own; six times where the table has none.
        (
            {"speed": "fast"},
            message("claude-opus-5", input_tokens=1_000, output_tokens=1_000, speed="fast"),
            60_000_000,
        ),
        (
            {"speed": "fast"},
            message("claude-opus-4-6", input_tokens=1_000, output_tokens=1_000, speed="fast"),
            180_000_000,
        ),
        (
            {"speed": "fast"},
            message("claude-opus-5", input_tokens=1_000, output_tokens=1_000, speed="standard"),
            30_000_000,
        ),
        # Priority is capacity bought beforehand, at no price a token: list price.
        ({}, message(HAIKU, input_tokens=1_000, output_tokens=1_000, service_tier="priority"), 6_000_000),
    ],
)
def test_anthropic(asked: Any, reported: Any, nanos: int) -> None:
    body = {"model": reported["model"], "max_tokens": 1_024, **asked}
    assert charged(Dialect.ANTHROPIC, "v1/messages", body, reported) == nanos


def test_anthropic_s_streams_report_their_iterations_at_the_end() -> None:
    reported = [
        {"type": "message_start", "message": message(HAIKU, input_tokens=412, output_tokens=1, inference_geo="global")},
        {"type": "message_delta", "usage": {"output_tokens": 89, "iterations": [round_of(412, 89), ADVISOR]}},
    ]
    nanos = charged(Dialect.ANTHROPIC, "v1/messages", {"model": HAIKU, "stream": True}, reported, events=True)
    assert nanos == 412 * 1_000 + 89 * 5_000 + 100_000 * 5_000 + 10_000 * 25_000


def usage(tokens_in: int, tokens_out: int, **more: Any) -> dict[str, Any]:
    return {"input_tokens": tokens_in, "output_tokens": tokens_out, "total_tokens": tokens_in + tokens_out, **more}


# platform.openai.com, "Pricing" and the API reference's example answers. gpt-5: 1 250 in, 125 cached, 10 000 out;
# gpt-4o-transcribe: 2 500 text, 6 000 audio in, 10 000 out; gpt-audio: 2 500 and 32 000 in, 10 000 and 64 000 out;
# gpt-image-1.5: 5 000 text, 8 000 images in, 10 000 text, 32 000 images out; gpt-5.6: 4 000 in,
# 5 000 written to the cache, 20 000 out.
@pytest.mark.parametrize(
    ("path", "model", "asked", "reported", "nanos"),
    [
        (
            "chat/completions",
            "gpt-5",
            {},
            {
                "usage": {
                    "prompt_tokens": 2_006,
                    "completion_tokens": 300,
                    "total_tokens": 2_306,
                    "prompt_tokens_details": {"cached_tokens": 1_920, "audio_tokens": 0},
                    "completion_tokens_details": {"reasoning_tokens": 192, "audio_tokens": 0},
                }
            },
            86 * 1_250 + 1_920 * 125 + 300 * 10_000,
        ),
        (
            "chat/completions",
            "gpt-audio",
            {},
            {
                "usage": {
                    "prompt_tokens": 120,
                    "completion_tokens": 60,
                    "total_tokens": 180,
                    "prompt_tokens_details": {"text_tokens": 20, "audio_tokens": 100},
                    "completion_tokens_details": {"text_tokens": 10, "audio_tokens": 50},
                }
            },
            20 * 2_500 + 100 * 32_000 + 10 * 10_000 + 50 * 64_000,
        ),
        # gpt-4o-audio-preview: 2 500 and 10 000 for text, 40 000 and 80 000 for audio.
        (
            "chat/completions",
            "gpt-4o-audio-preview",
            {},
            {
                "usage": {
                    "prompt_tokens": 110,
                    "completion_tokens": 60,
                    "total_tokens": 170,
                    "prompt_tokens_details": {"text_tokens": 10, "audio_tokens": 100},
                    "completion_tokens_details": {"text_tokens": 10, "audio_tokens": 50},
                }
            },
            10 * 2_500 + 100 * 40_000 + 10 * 10_000 + 50 * 80_000,
        ),
        ("responses", "gpt-5", {}, {"service_tier": "default", "usage": usage(36, 87)}, 36 * 1_250 + 87 * 10_000),
        ("responses", "gpt-5", {"service_tier": "flex"}, {"service_tier": "flex", "usage": usage(36, 87)}, 457_500),
        (
            "responses",
            "gpt-5",
            {"service_tier": "priority"},
            {"service_tier": "priority", "usage": usage(36, 87)},
            2 * 915_000,
        ),
        # Requested but not applied: the tier of the response counts.
        (
            "responses",
            "gpt-5",
            {"service_tier": "priority"},
            {"service_tier": "default", "usage": usage(36, 87)},
            915_000,
        ),
        # 2.5 times, the highest ratio on the page, where the table has no separate price (the real one is unknown).
        (
            "responses",
            "gpt-5-search-api",
            {"service_tier": "priority"},
            {"service_tier": "priority", "usage": usage(36, 87)},
            2_287_500 + 10_000_000,
        ),
        # Writes to the cache that last twelve hours cost twice the others.
        (
            "responses",
            "gpt-5.6",
            {},
            {
                "usage": usage(
                    1_000,
                    10,
                    input_tokens_details={
                        "cached_tokens": 0,
                        "cache_write_tokens": 800,
                        "cache_write_tokens_details": {"ttl_30m_tokens": 300, "ttl_12h_tokens": 500},
                    },
                )
            },
            200 * 4_000 + 300 * 5_000 + 500 * 10_000 + 10 * 20_000,
        ),
        (
            "audio/transcriptions",
            "gpt-4o-transcribe",
            {},
            {
                "text": "A sentence.",
                "usage": usage(14, 101, type="tokens", input_token_details={"text_tokens": 10, "audio_tokens": 4}),
            },
            10 * 2_500 + 4 * 6_000 + 101 * 10_000,
        ),
        # whisper-1: 0.006 USD a minute.
        (
            "audio/transcriptions",
            "whisper-1",
            {},
            {"text": "A sentence.", "usage": {"type": "duration", "seconds": 9}},
            900_000,
        ),
        (
            "images/generations",
            "gpt-image-1.5",
            {},
            {
                "data": [{"b64_json": "AAAA"}],
                "usage": usage(
                    50,
                    4_160,
                    input_tokens_details={"text_tokens": 10, "image_tokens": 40},
                    output_tokens_details={"text_tokens": 0, "image_tokens": 4_160},
                ),
            },
            10 * 5_000 + 40 * 8_000 + 4_160 * 32_000,
        ),
        # Without details of the output, all of it is images.
        (
            "images/generations",
            "gpt-image-1.5",
            {},
            {
                "data": [{"b64_json": "AAAA"}],
                "usage": usage(50, 4_160, input_tokens_details={"text_tokens": 10, "image_tokens": 40}),
            },
            10 * 5_000 + 40 * 8_000 + 4_160 * 32_000,
        ),
        ("embeddings", "text-embedding-3-small", {}, {"usage": {"prompt_tokens": 8, "total_tokens": 8}}, 160),
    ],
)
def test_openai(path: str, model: str, asked: Any, reported: Any, nanos: int) -> None:
    assert charged(Dialect.OPENAI, path, {"model": model, **asked}, {"model": model, **reported}) == nanos


def metadata(**counts: Any) -> dict[str, Any]:
    return {"candidates": [{"finishReason": "STOP"}], "usageMetadata": counts}


def modality(kind: str, count: int) -> list[dict[str, Any]]:
    return [{"modality": "TEXT", "tokenCount": 1}, {"modality": kind, "tokenCount": count}]


def grounded(*queries: str) -> dict[str, Any]:
    candidate = {"finishReason": "STOP", "groundingMetadata": {"webSearchQueries": list(queries)}}
    return {**metadata(promptTokenCount=100, candidatesTokenCount=10, totalTokenCount=110), "candidates": [candidate]}


# ai.google.dev, "Gemini API pricing", "Optimization" and the API reference. gemini-2.5-flash: 300 text, 1 000 audio in,
# 30 cached, 2 500 out; gemini-3.5-flash: 1 500, 9 000; priority 1.8 times, flex half.
@pytest.mark.parametrize(
    ("model", "asked", "reported", "nanos"),
    [
        # Thoughts are output, tool results are input.
        (
            "gemini-2.5-flash",
            {},
            metadata(
                promptTokenCount=13,
                candidatesTokenCount=20,
                thoughtsTokenCount=300,
                toolUsePromptTokenCount=7,
                totalTokenCount=340,
            ),
            20 * 300 + 320 * 2_500,
        ),
        (
            "gemini-2.5-flash",
            {},
            metadata(
                promptTokenCount=1_000, cachedContentTokenCount=600, candidatesTokenCount=10, totalTokenCount=1_010
            ),
            400 * 300 + 600 * 30 + 10 * 2_500,
        ),
        (
            "gemini-2.5-flash",
            {},
            metadata(
                promptTokenCount=101,
                candidatesTokenCount=10,
                totalTokenCount=111,
                promptTokensDetails=modality("AUDIO", 100),
            ),
            300 + 100 * 1_000 + 10 * 2_500,
        ),
        # An image: 30 USD per million tokens.
        (
            "gemini-2.5-flash-image",
            {},
            metadata(
                promptTokenCount=10,
                candidatesTokenCount=1_291,
                totalTokenCount=1_301,
                candidatesTokensDetails=modality("IMAGE", 1_290),
            ),
            10 * 300 + 2_500 + 1_290 * 30_000,
        ),
        # Tokens of the total that no known count explains are charged as output.
        (
            "gemini-2.5-flash",
            {},
            metadata(promptTokenCount=10, candidatesTokenCount=5, totalTokenCount=115),
            10 * 300 + 105 * 2_500,
        ),
        (
            "gemini-3.5-flash",
            {"serviceTier": "priority"},
            metadata(promptTokenCount=1_000, candidatesTokenCount=100, totalTokenCount=1_100, serviceTier="priority"),
            (1_000 * 1_500 + 100 * 9_000) * 18 // 10,
        ),
        (
            "gemini-3.5-flash",
            {"serviceTier": "priority"},
            metadata(promptTokenCount=1_000, candidatesTokenCount=100, totalTokenCount=1_100, serviceTier="standard"),
            1_000 * 1_500 + 100 * 9_000,
        ),
        (
            "gemini-2.5-flash",
            {"service_tier": "flex"},
            metadata(promptTokenCount=1_000, candidatesTokenCount=100, totalTokenCount=1_100, serviceTier="FLEX"),
            (1_000 * 300 + 100 * 2_500) // 2,
        ),
        # Google also reports the tier in a header; without it in the body, the requested tier counts.
        (
            "gemini-2.5-flash",
            {"serviceTier": "flex"},
            metadata(
                promptTokenCount=1_000, cachedContentTokenCount=500, candidatesTokenCount=100, totalTokenCount=1_100
            ),
            500 * 150 + 500 * 30 + 100 * 1_250,
        ),
        # Gemini 2: 35 USD per 1 000 grounded prompts; Gemini 3: 14 per 1 000 queries.
        (
            "gemini-2.5-flash",
            {"tools": [{"googleSearch": {}}]},
            grounded("a", "b"),
            100 * 300 + 10 * 2_500 + 35_000_000,
        ),
        ("gemini-2.5-flash", {"tools": [{"googleSearch": {}}]}, grounded(), 100 * 300 + 10 * 2_500),
        (
            "gemini-3.5-flash",
            {"tools": [{"google_search": {}}]},
            grounded("a", "b"),
            100 * 1_500 + 10 * 9_000 + 2 * 14_000_000,
        ),
    ],
)
def test_gemini(model: str, asked: Any, reported: Any, nanos: int) -> None:
    path = f"v1beta/models/{model}:generateContent"
    assert charged(Dialect.GEMINI, path, asked, {"modelVersion": model, **reported}) == nanos


# gemini-2.5-pro: 1 250 in, 10 000 out; claude-opus-4-8: 5 000 and 25 000; gpt-5: 1 250 and 10 000.
@pytest.mark.parametrize(
    ("dialect", "path", "model", "nanos"),
    [
        (Dialect.GEMINI, "v1beta/openai/chat/completions", "gemini-2.5-pro", 1_000 * 1_250 + 100 * 10_000),
        (Dialect.ANTHROPIC, "v1/chat/completions", "claude-opus-4-8", 1_000 * 5_000 + 100 * 25_000),
        (Dialect.OPENAI, "chat/completions", "gpt-5", 1_000 * 1_250 + 100 * 10_000),
    ],
)
@pytest.mark.parametrize("name", ["service_tier", "serviceTier"])
def test_an_unconfirmed_discount_is_not_given(dialect: Dialect, path: str, model: str, nanos: int, name: str) -> None:
    counts = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
    assert charged(dialect, path, {"model": model, name: "flex"}, {"model": model, "usage": counts}) == nanos


# openrouter.ai, "Usage accounting": the cost is the whole charge to the account; with a provider key it is only the
# fee, and the provider's bill is reported separately.
@pytest.mark.parametrize(
    ("reported", "nanos"),
    [
        ({"cost": 0.95, "cost_details": {"upstream_inference_cost": None}}, 950_000_000),
        ({"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.95}}, 1_000_000_000),
        ({"cost": 0.05, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.95}}, 50_000_000),
        ({"cost": 0}, 0),
    ],
)
def test_openrouter(reported: Any, nanos: int) -> None:
    counts = {"prompt_tokens": 194, "completion_tokens": 2, "total_tokens": 196}
    answer = {"model": "openai/gpt-5", "usage": {**counts, **reported}}
    assert charged(Dialect.OPENROUTER, "chat/completions", {"model": "openai/gpt-5"}, answer) == nanos


# groq.com/pricing: gpt-oss-120b 0.15 and 0.60 USD per million, half for cached input; whisper-large-v3 0.111 USD an
# hour, ten seconds at least.
@pytest.mark.parametrize(
    ("path", "model", "reported", "nanos"),
    [
        (
            "chat/completions",
            "openai/gpt-oss-120b",
            {
                "prompt_tokens": 4_641,
                "completion_tokens": 1_817,
                "total_tokens": 6_458,
                "prompt_tokens_details": {"cached_tokens": 4_608},
            },
            33 * 150 + 4_608 * 75 + 1_817 * 600,
        ),
        ("audio/transcriptions", "whisper-large-v3", {"type": "duration", "seconds": 36}, 1_110_000),
        # 111 000 000 * 10 / 3600, rounded up.
        ("audio/transcriptions", "whisper-large-v3", {"type": "duration", "seconds": 2}, 308_334),
    ],
)
def test_groq(path: str, model: str, reported: Any, nanos: int) -> None:
    assert charged(Dialect.GROQ, path, {"model": model}, {"model": model, "usage": reported}) == nanos


COUNTS = {"usage": usage(1_000, 100)}
MESSAGE = {"input_tokens": 1_000, "output_tokens": 100}


def test_an_unknown_model_costs_as_much_as_the_most_expensive() -> None:
    # o1-pro: 150 and 600 USD per million; Claude 3 Opus: 15 and 75.
    assert charged(Dialect.OPENAI, "responses", {"model": "o5"}, COUNTS) == 1_000 * 150_000 + 100 * 600_000
    reported = message("claude-mythos-preview", **MESSAGE)
    asked = {"model": "claude-mythos-preview"}
    assert charged(Dialect.ANTHROPIC, "v1/messages", asked, reported) == 1_000 * 15_000 + 100 * 75_000
    # No discount of another model applies.
    cached = {"usage": usage(1_000, 100, input_tokens_details={"cached_tokens": 1_000})}
    assert charged(Dialect.OPENAI, "responses", {"model": "o5"}, cached) == 1_000 * 150_000 + 100 * 600_000


def test_the_operators_price_takes_precedence() -> None:
    rule = PriceRow.model_validate(
        {
            "type": "tokens",
            "table": "openai",
            "fallback_input_usd_per_million": "3",
            "fallback_output_usd_per_million": "4",
            "models": {
                "o5*": {"input_usd_per_million": "2.5", "output_usd_per_million": "20"},
                "o5-mini": {"input_usd_per_million": "1", "output_usd_per_million": "2"},
                "gpt-5": {"input_usd_per_million": "1.5", "output_usd_per_million": "12"},
                "imagen-4*": {"usd": "0.06"},
            },
        }
    ).rule()
    assert isinstance(rule, TokenPrices)
    for model, nanos in (
        ("o5-2026-11-30", 1_000 * 2_500 + 100 * 20_000),
        ("o5-mini", 1_000 * 1_000 + 100 * 2_000),
        ("gpt-5", 1_000 * 1_500 + 100 * 12_000),
        ("o6", 1_000 * 3_000 + 100 * 4_000),
    ):
        assert charged(Dialect.OPENAI, "responses", {"model": model}, COUNTS, rule) == nanos
    pictures = {"model": "imagen-4.0", "n": 3}
    assert charged(Dialect.OPENAI, "images/generations", pictures, {}, rule) == 3 * 60_000_000


@pytest.mark.parametrize("models", ["o5", {"o5": {}}, {"o5": "1"}, {"o5": {"input": "1"}}, {"o5": {"usd": 0.1}}])
def test_an_invalid_price_of_a_model_is_refused(models: Any) -> None:
    with pytest.raises(ValueError, match="models"):
        PriceRow.model_validate({"type": "tokens", "table": "openai", "models": models}).rule()
