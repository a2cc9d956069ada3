"""Input and searches beyond the hold: files at URLs, MCP servers, tools without a limit, undivided output."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request.cost_params import CostParams, Dialect
from app.gateway.pricing.quotes import CallQuote, PricedRequest, TokenPrices
from app.gateway.validation import rules as request_rules
from tests.support.provider_rows import read_request, table
from tests.support.response_readers import reader_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
RESPONSES, CHAT, MESSAGES = "responses", "chat/completions", "v1/messages"
USD = 10**9


def call(dialect: Dialect, path: str, body: Any) -> CostParams:
    return read_request(dialect, "POST", path, body=json.dumps(body).encode())


def quote(params: CostParams) -> CallQuote:
    return prices(params).quote(PricedRequest(at=AT, params=params))


def prices(params: CostParams) -> TokenPrices:
    return TokenPrices("google" if params.dialect is Dialect.GEMINI else params.dialect.value)


def settled(params: CostParams, answer: Any) -> int:
    reading = reader_of(params, status=200, content_type="application/json")
    reading.feed(json.dumps(answer).encode())
    reading.flush()
    return prices(params).settle(params, reading.finish(), AT).cost_nanos


def generate(model: str) -> str:
    return f"v1beta/models/{model}:generateContent"


SEARCH = {"type": "web_search_20250305", "name": "web_search"}
FETCH = {"type": "web_fetch_20250910", "name": "web_fetch"}
MCP = {"type": "mcp", "server_url": "https://mcp.example", "server_label": "m"}


@pytest.mark.parametrize(
    ("dialect", "path", "asked", "sent", "searches"),
    [
        (Dialect.OPENAI, RESPONSES, {"tools": [{"type": "web_search"}]}, {"max_tool_calls": 10}, 10),
        (Dialect.OPENAI, RESPONSES, {"tools": [{"type": "web_search"}, MCP]}, {"max_tool_calls": 20}, 20),
        (Dialect.OPENAI, RESPONSES, {"max_tool_calls": None, "tools": [MCP]}, {"max_tool_calls": 10}, 0),
        (Dialect.OPENAI, RESPONSES, {"max_tool_calls": 3, "tools": [{"type": "web_search"}]}, {}, 3),
        (Dialect.ANTHROPIC, MESSAGES, {"tools": [SEARCH]}, {"tools": [{"max_uses": 10, **SEARCH}]}, 10),
        (
            Dialect.ANTHROPIC,
            MESSAGES,
            {"tools": [{"name": "f", "input_schema": {}}, {**SEARCH, "max_uses": 25}, {**SEARCH, "max_uses": None}]},
            {"tools": [{"name": "f", "input_schema": {}}, {**SEARCH, "max_uses": 25}, {**SEARCH, "max_uses": 10}]},
            35,
        ),
        (
            Dialect.ANTHROPIC,
            MESSAGES,
            {"tools": [FETCH]},
            {"tools": [{"max_content_tokens": 25_000, "max_uses": 10, **FETCH}]},
            0,
        ),
        (
            Dialect.OPENROUTER,
            CHAT,
            {"tools": [{"type": "openrouter:web_search", "parameters": {"engine": "exa"}}]},
            {"tools": [{"type": "openrouter:web_search", "parameters": {"max_uses": 10, "engine": "exa"}}]},
            10,
        ),
        (
            Dialect.OPENROUTER,
            "messages",
            {"tools": [{"type": "openrouter:web_search"}]},
            {"tools": [{"parameters": {"max_uses": 10}, "type": "openrouter:web_search"}]},
            10,
        ),
        # Google has no such limit, and bills Gemini 2 per prompt.
        (Dialect.GEMINI, generate("gemini-2.5-pro"), {"tools": [{"googleSearch": {}}]}, {}, 1),
    ],
)
def test_the_hold_covers_all_searches(dialect: Dialect, path: str, asked: Any, sent: Any, searches: int) -> None:
    params = call(dialect, path, asked)
    assert json.loads(params.body) == asked | sent
    assert params.searches == searches


def test_a_limit_changes_nothing_else_in_the_body() -> None:
    tools = b'[ {"name":"f\\u00fc]"} ,{"type":"web_search_20250305"} ]'
    body = b'{ "model":"claude-opus-5",\n "temperature": 1.50, "tools": ' + tools + b" }"
    params = read_request(Dialect.ANTHROPIC, "POST", MESSAGES, body=body)
    assert params.body == body.replace(b'{"type":"web', b'{"max_uses":10,"type":"web')


def test_removing_or_hiding_a_limit_is_refused() -> None:
    row = table().find("openrouter")
    stops = {"stop_server_tools_when": [{"type": "max_cost", "max_cost_in_dollars": 4}]}
    with pytest.raises(RouteNotAllowed):
        request_rules.check_fields(row.refused_fields, row.limits, stops)
    with pytest.raises(InvalidInput):
        call(Dialect.OPENROUTER, CHAT, {"plugins": [{"id": "web", "max_results": 26}]})


def test_a_tool_within_the_conversation_gets_its_limit_too() -> None:
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": SEARCH}}
    asked = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, added]}]}
    params = call(Dialect.ANTHROPIC, MESSAGES, asked)
    content = json.loads(params.body)["messages"][0]["content"]
    assert content[1]["tool"]["definition"] == {"max_uses": 10, **SEARCH}
    assert params.searches == 10
    deep: Any = [added]
    for _ in range(8):
        deep = [{"content": deep}]
    with pytest.raises(InvalidInput, match="own list of tools"):
        call(Dialect.ANTHROPIC, MESSAGES, {"messages": deep})


IMAGE = {"type": "image_generation", "model": "gpt-image-1.5", "quality": "medium", "size": "1024x1024"}
ADVISOR = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5"}
RESEARCH = {"type": "web_search_preview"}


def bounded(dialect: Dialect, path: str, asked: Any, nanos: int) -> tuple[CallQuote, Any]:
    found = quote(call(dialect, path, asked)).within(nanos, AT)
    assert found.params is not None
    return found, json.loads(found.params.body)


@pytest.mark.parametrize("nanos", [5 * USD, USD, 600_000_000])
@pytest.mark.parametrize(
    ("dialect", "path", "asked", "place"),
    [
        (Dialect.OPENAI, RESPONSES, {"model": "gpt-5-mini", "tools": [IMAGE]}, ()),
        (Dialect.OPENAI, RESPONSES, {"model": "o4-mini-deep-research", "tools": [RESEARCH]}, ()),
        (Dialect.OPENAI, RESPONSES, {"model": "gpt-5-mini", "max_output_tokens": 99, "tools": [IMAGE]}, ()),
        (Dialect.ANTHROPIC, MESSAGES, {"model": "claude-haiku-4-5", "max_tokens": 9, "tools": [ADVISOR]}, ("tools", 0)),
    ],
)  # fmt: skip
def test_the_largest_limit_that_fits_is_added(dialect: Dialect, path: str, asked: Any, place: Any, nanos: int) -> None:
    found, sent = bounded(dialect, path, asked, nanos)
    assert found.params is not None
    name = "max_uses" if place else "max_tool_calls"
    holder = sent
    for step in place:
        holder = holder[step]
    assert 1 <= holder[name] < 1_000
    fits = found.worst_case.cost_nanos <= nanos
    assert fits or found.minimum_nanos <= nanos
    assert f"{holder[name]}" in found.params.applied_limits[name]
    found.check(nanos)
    # One more would not fit, and what the client states is not changed.
    holder[name] += 1
    more = quote(call(dialect, path, sent)).within(nanos, AT)
    assert more.params is not None
    assert (more.worst_case.cost_nanos if fits else more.minimum_nanos) > nanos
    assert json.loads(more.params.body) == sent
    assert name not in more.params.applied_limits


def test_the_usual_limits_are_lowered_where_they_do_not_fit() -> None:
    asked = {"model": "claude-opus-5", "max_tokens": 99, "tools": [{**SEARCH, "max_uses": 4}, SEARCH, FETCH]}
    found, sent = bounded(Dialect.ANTHROPIC, MESSAGES, asked, 5 * USD)
    assert [tool["max_uses"] for tool in sent["tools"]] == [4, 10, 10]
    assert found.params is not None
    assert found.params.applied_limits == {"max_uses": "10", "max_content_tokens": "25000"}
    lowered, sent = bounded(Dialect.ANTHROPIC, MESSAGES, asked, found.worst_case.cost_nanos * 3 // 4)
    assert sent["tools"][0]["max_uses"] == 4
    assert 1 <= sent["tools"][1]["max_uses"] == sent["tools"][2]["max_uses"] < 10
    assert lowered.worst_case.cost_nanos < found.worst_case.cost_nanos


def test_different_limits_of_tools_are_stated_in_their_order() -> None:
    asked = {"model": "claude-haiku-4-5", "max_tokens": 99, "tools": [ADVISOR, SEARCH]}
    found, sent = bounded(Dialect.ANTHROPIC, MESSAGES, asked, 20 * USD)
    assert found.params is not None
    uses = [tool["max_uses"] for tool in sent["tools"]]
    assert uses[0] > uses[1] == 10
    assert found.params.applied_limits == {"max_uses": f"{uses[0]}, 10", "advisor_max_tokens": "4096"}
    assert sent["tools"][0]["max_tokens"] == 4_096


def test_less_output_is_left_where_only_that_fits_and_then_the_call_is_refused_with_the_numbers() -> None:
    asked = {"model": "gpt-5", "tools": [IMAGE], "input": "Hi"}
    one, _ = bounded(Dialect.OPENAI, RESPONSES, asked, 0)
    found, sent = bounded(Dialect.OPENAI, RESPONSES, asked, one.minimum_nanos)
    assert sent["max_tool_calls"] == 1
    found.check(one.minimum_nanos)
    short, sent = bounded(Dialect.OPENAI, RESPONSES, asked, one.minimum_nanos - 1)
    assert sent["max_tool_calls"] == 1
    with pytest.raises(InvalidInput) as refusal:
        short.check(one.minimum_nanos - 1)
    assert refusal.value.details["worst_case_usd"] > refusal.value.details["limit_usd"]


def test_more_searches_and_fetches_hold_more_input() -> None:
    def held(tool: Any) -> int:
        return call(Dialect.ANTHROPIC, MESSAGES, {"tools": [tool]}).tokens_in

    assert 100_000 < held({**SEARCH, "max_uses": 10}) < 110_000
    assert 300_000 < held({**SEARCH, "max_uses": 30}) < 310_000
    assert held(FETCH) > 10 * 25_000
    assert held({**FETCH, "max_uses": 5, "max_content_tokens": 100_000}) > 500_000


PDF = "https://a.example/x.pdf"
# The context windows of the price table, or the largest one.
HAIKU, GPT_5, FLASH, UNKNOWN = 200_000, 400_000, 1_048_576, 1_050_000


@pytest.mark.parametrize(
    ("dialect", "path", "asked", "tokens", "nanos"),
    [
        (
            Dialect.ANTHROPIC,
            MESSAGES,
            {"model": "claude-haiku-4-5", "content": [{"type": "document", "source": {"type": "url", "url": PDF}}]},
            HAIKU,
            1_100,
        ),
        # A file with both may be read from either.
        (
            Dialect.ANTHROPIC,
            MESSAGES,
            {"model": "claude-haiku-4-5", "content": [{"type": "document", "source": {"url": PDF, "data": "AA"}}]},
            HAIKU,
            1_100,
        ),
        (
            Dialect.OPENAI,
            RESPONSES,
            {"model": "gpt-5", "input": [{"content": [{"type": "input_file", "file_url": PDF}]}]},
            GPT_5,
            1_250,
        ),
        (
            Dialect.OPENROUTER,
            CHAT,
            {
                "model": "openai/gpt-5",
                "messages": [{"content": [{"type": "file", "file": {"filename": "x", "file_data": PDF}}]}],
            },
            GPT_5,
            1_250,
        ),
        (Dialect.OPENAI, RESPONSES, {"model": "gpt-5", "tools": [MCP]}, GPT_5, 1_250),
        (
            Dialect.GEMINI,
            generate("gemini-2.5-flash"),
            {"contents": [{"parts": [{"fileData": {"fileUri": "https://a.example/film"}}]}]},
            FLASH,
            # A video has audio.
            1_000,
        ),
        (Dialect.GEMINI, generate("gemini-2.5-flash"), {"tools": [{"urlContext": {}}]}, FLASH, 300),
        (Dialect.GROQ, CHAT, {"model": "a-model-of-tomorrow", "tools": [MCP]}, UNKNOWN, 1_000),
    ],
)
def test_input_chosen_by_others_is_held_up_to_the_context_window(
    dialect: Dialect, path: str, asked: Any, tokens: int, nanos: int
) -> None:
    params = call(dialect, path, asked)
    assert quote(params).lines[0][0] >= tokens * nanos
    assert params.tokens_in_likely < 20_000


def test_a_file_at_a_url_above_the_maximum_of_one_call_is_refused_with_the_reason() -> None:
    source = {"type": "url", "url": PDF}
    asked = {"model": "claude-opus-5", "max_tokens": 100, "content": [{"type": "document", "source": source}]}
    with pytest.raises(InvalidInput, match="files at URLs"):
        quote(call(Dialect.ANTHROPIC, MESSAGES, asked)).check(5 * USD)


def test_a_cache_requested_with_escapes_is_held() -> None:
    body = b'{"model":"claude-haiku-4-5","max_tokens":9,"\\u0063ache_control":{"type":"ephemeral","ttl":"1h"}}'
    plain = call(Dialect.ANTHROPIC, MESSAGES, {"model": "claude-haiku-4-5", "max_tokens": 9})
    escaped = read_request(Dialect.ANTHROPIC, "POST", MESSAGES, body=body)
    # Cache writes for an hour: twice the input's price. In any region: 1.1 times.
    assert quote(escaped).lines[0][0] == escaped.tokens_in * 2_200
    assert quote(plain).lines[0][0] == plain.tokens_in * 1_100


# ai.google.dev, "Gemini API pricing": gemini-2.5-flash-image 0.30 USD in, 2.50 text, 30 images per million (1 290
# tokens each); gemini-3-pro-image-preview 2, 12, 120 (1 120 tokens); gemini-2.5-flash-preview-tts 0.50 in, 10 audio;
# gemini-2.5-flash 0.30 in and 1.00 for audio, 2.50 out.
@pytest.mark.parametrize(
    ("model", "written", "details", "nanos"),
    [
        ("gemini-2.5-flash-image", 1_290, [("IMAGE", 1_290)], 10 * 300 + 1_290 * 30_000),
        ("gemini-2.5-flash-image", 1_300, [("IMAGE", 1_290)], 10 * 300 + 1_290 * 30_000 + 10 * 2_500),
        ("gemini-2.5-flash-image", 1_300, [("TEXT", 1_300)], 10 * 300 + 1_300 * 2_500),
        # Without details all of it may be images.
        ("gemini-2.5-flash-image", 1_290, None, 10 * 300 + 1_290 * 30_000),
        ("gemini-3-pro-image-preview", 1_120, [("IMAGE", 1_120)], 10 * 2_000 + 1_120 * 120_000),
        ("gemini-2.5-flash-preview-tts", 250, [("AUDIO", 250)], 10 * 500 + 250 * 10_000),
        ("gemini-2.5-flash-preview-tts", 250, None, 10 * 500 + 250 * 10_000),
        ("gemini-2.5-flash", 250, None, 10 * 300 + 250 * 2_500),
    ],
)
def test_images_and_audio_from_gemini_cost_their_own_price(
    model: str, written: int, details: list[tuple[str, int]] | None, nanos: int
) -> None:
    params = call(Dialect.GEMINI, generate(model), {"contents": [{"parts": [{"text": "Draw"}]}]})
    usage: dict[str, Any] = {"promptTokenCount": 10, "candidatesTokenCount": written, "totalTokenCount": 10 + written}
    if details is not None:
        usage["candidatesTokensDetails"] = [{"modality": kind, "tokenCount": count} for kind, count in details]
    answer = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": usage, "modelVersion": model}
    assert settled(params, answer) == nanos
    assert quote(params).worst_case.cost_nanos >= nanos


def test_audio_costs_its_price_if_the_response_does_not_divide_its_input() -> None:
    path = "v1beta/openai/chat/completions"
    usage = {"prompt_tokens": 1_000, "completion_tokens": 10, "total_tokens": 1_010}
    for part, each in (
        ({"type": "input_audio", "input_audio": {"data": "A" * 64_000, "format": "mp3"}}, 1_000),
        ({"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}, 300),
    ):
        params = call(Dialect.GEMINI, path, {"model": "gemini-2.5-flash", "messages": [{"content": [part]}]})
        assert settled(params, {"model": "gemini-2.5-flash", "usage": usage}) == 1_000 * each + 10 * 2_500


def test_images_through_openrouter_are_held_at_the_price_of_their_maker() -> None:
    params = call(Dialect.OPENROUTER, CHAT, {"model": "google/gemini-3-pro-image-preview", "max_tokens": 1_120})
    assert quote(params).worst_case.cost_nanos >= 1_120 * 120_000


def test_snapshots_of_a_speech_model_cost_the_same_as_the_model() -> None:
    asked = {"input": "Good morning.", "voice": "coral"}
    rule = table().find("openai").match("POST", "audio/speech").route.rule
    worst = [
        rule.quote(
            PricedRequest(at=AT, params=call(Dialect.OPENAI, "audio/speech", {**asked, "model": model}))
        ).worst_case
        for model in ("gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")
    ]
    assert worst[0].cost_nanos == worst[1].cost_nanos < 10_000_000


def test_many_hosted_tools_are_refused_before_their_limits_are_looked_for() -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"} for _ in range(20_000)]
    body = {"model": "claude-sonnet-4-5", "max_tokens": 10, "messages": [], "tools": tools}
    with pytest.raises(InvalidInput, match="20000 hosted tools: at most 128"):
        call(Dialect.ANTHROPIC, MESSAGES, body)
