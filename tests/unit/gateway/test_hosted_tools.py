"""Hosted tools: tools of unbounded cost are refused, all others are covered by the hold and charged in full."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request.cost_params import CostParams, Dialect
from app.gateway.dialects.response.usage_readers import UsageReading
from app.gateway.pricing.quotes import CallQuote, PricedRequest, TokenPrices
from tests.support.provider_rows import read_request
from tests.support.response_readers import reader_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
PATHS = {
    Dialect.OPENAI: "responses",
    Dialect.ANTHROPIC: "v1/messages",
    Dialect.GEMINI: "v1beta/models/{model}:generateContent",
    Dialect.OPENROUTER: "chat/completions",
    Dialect.GROQ: "chat/completions",
}
TABLES = {
    Dialect.OPENAI: "openai",
    Dialect.ANTHROPIC: "anthropic",
    Dialect.GEMINI: "google",
    Dialect.OPENROUTER: "openrouter",
    Dialect.GROQ: "groq",
}


def call(dialect: Dialect, body: Any, path: str | None = None) -> CostParams:
    where = (path or PATHS[dialect]).format(model=body.get("model", "m"))
    return read_request(dialect, "POST", where, body=json.dumps(body).encode())


def quote(params: CostParams) -> CallQuote:
    return TokenPrices(TABLES[params.dialect]).quote(PricedRequest(at=AT, params=params))


def answered(params: CostParams, body: Any) -> UsageReading:
    answer = reader_of(params, status=200, content_type="application/json")
    answer.feed(json.dumps(body).encode())
    answer.flush()
    return answer.finish()


def charged(params: CostParams, body: Any) -> int:
    return TokenPrices(TABLES[params.dialect]).settle(params, answered(params, body), AT).cost_nanos


CONTAINER = {"type": "container_auto", "memory_limit": "64g"}
FUNCTION_OF_TEST = {"name": "f", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.OPENAI, {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}),
        (Dialect.OPENAI, {"tools": [{"type": "programmatic_tool_calling"}]}),
        (Dialect.OPENAI, {"tools": [{"type": "a_tool_of_tomorrow"}]}),
        (Dialect.OPENAI, {"tools": [{"type": "Code_Interpreter"}]}),
        (Dialect.OPENAI, {"tools": {"type": "file_search"}}),
        # A container that another caller may have created, with files and a network.
        (Dialect.OPENAI, {"tools": [{"type": "code_interpreter", "container": "cntr_1"}]}),
        (Dialect.OPENAI, {"tools": [{"type": "code_interpreter"}]}),
        (
            Dialect.OPENAI,
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file-1"]}}]},
        ),
        (Dialect.OPENAI, {"tools": [{"type": "shell"}]}),
        (
            Dialect.OPENAI,
            {"tools": [{"type": "shell", "environment": {"type": "container_reference", "container_id": "c"}}]},
        ),
        (Dialect.OPENAI, {"tools": [{"type": "shell", "environment": {**CONTAINER, "skills": [{"id": "s"}]}}]}),
        (
            Dialect.OPENAI,
            {"tools": [{"type": "shell", "environment": {**CONTAINER, "network_policy": {"type": "allowlist"}}}]},
        ),
        # Tools added within a conversation or a namespace.
        (Dialect.OPENAI, {"input": [{"type": "additional_tools", "tools": [{"type": "file_search"}]}]}),
        (Dialect.OPENAI, {"tools": [{"type": "namespace", "tools": [{"type": "file_search"}]}]}),
        (
            Dialect.OPENAI,
            {"max_tool_calls": 1, "tools": [{"type": "image_generation", "svg": {"model": "gpt-6-astra"}}]},
        ),
        (Dialect.ANTHROPIC, {"tools": [{"type": "web_search_tomorrow", "name": "web_search"}]}),
        (
            Dialect.ANTHROPIC,
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [
                            {
                                "type": "tool_addition",
                                "tool": {"type": "tool_definition", "definition": {"type": "dream_20261101"}},
                            }
                        ],
                    }
                ]
            },
        ),
        (Dialect.GEMINI, {"tools": [{"fileSearch": {"fileSearchStoreNames": ["x"]}}]}),
        (Dialect.GEMINI, {"tools": [{"file_search": {}}]}),
        (Dialect.GEMINI, {"tools": [{"type": "function", "retrieval": {}}]}),
        (Dialect.GEMINI, {"model": "gemini-3.5-flash", "tools": [{"googleMaps": {}}]}),
        (Dialect.GROQ, {"model": "groq/compound"}),
        (Dialect.GROQ, {"model": "compound-beta-mini"}),
        (Dialect.GROQ, {"tools": [{"type": "browser_search"}]}),
        (Dialect.GROQ, {"tools": [{"type": "code_interpreter"}]}),
        (Dialect.OPENROUTER, {"tools": [{"type": "openrouter:fusion"}]}),
        (Dialect.OPENROUTER, {"tools": [{"type": "code_interpreter"}]}),
        (Dialect.OPENROUTER, {"plugins": [{"id": "fusion"}]}),
        (Dialect.OPENROUTER, {"plugins": ["fusion"]}),
        # Searches at its own discretion, whatever limits the request has; as a fallback and in capitals too.
        (Dialect.OPENROUTER, {"model": "perplexity/sonar-deep-research", "max_tokens": 1, "max_tool_calls": 1}),
        (Dialect.OPENROUTER, {"model": "a/b", "models": ["a/c", "OpenAI/o3-Deep-Research"]}),
        (Dialect.GROQ, {"model": "Groq/Compound"}),
    ],
)
def test_a_tool_without_a_price_is_refused(dialect: Dialect, body: Any) -> None:
    with pytest.raises(RouteNotAllowed) as refusal:
        call(dialect, body)
    assert refusal.value.details["fields"]


SHELL = {"environment": {"type": "container_auto", "memory_limit": "64g"}}


@pytest.mark.parametrize("dialect", list(PATHS))
@pytest.mark.parametrize(
    "tools",
    [
        "web_search", 1, True, ["web_search"], [[{"type": "code_interpreter"}]], [None], [{"type": "function"}, []],
        [{}], [{"type": ""}], [{"type": 0}], [{"type": ["function"]}], [{"type": {"type": "function"}}],
        [SHELL], [{"name": "x", **SHELL}], [{"name": "x", "container": {"type": "auto", "memory_limit": "64g"}}],
        [{"name": "x", "shell": {}}], [{"image_generation": {"quality": "high"}}], [{"web_search": {}}],
        [{"server_url": "https://a.example", "server_label": "a"}], {"0": {"type": "code_interpreter"}},
        {"web_search": {}},
    ],
)  # fmt: skip
def test_tools_that_cannot_be_read_are_refused(dialect: Dialect, tools: Any) -> None:
    places = [{"tools": tools}, {"input": [{"type": "additional_tools", "tools": tools}]}]
    if isinstance(tools, list):
        places += [
            {"messages": [{"content": [{"type": "tool_definition", "definition": each}]}]}
            for each in tools
            if each != {"type": "function"}
        ]
    for body in places:
        if dialect is Dialect.GEMINI and tools == [{}]:
            continue
        with pytest.raises(RouteNotAllowed) as refusal:
            call(dialect, {"model": "m", **body})
        assert refusal.value.details["fields"]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.OPENAI, {"tool_choice": ["file_search"]}), (Dialect.OPENAI, {"tool_choice": 1}),
        (Dialect.OPENAI, {"web_search_options": "high"}), (Dialect.OPENAI, {"web_search_options": [{}]}),
        (Dialect.ANTHROPIC, {"mcp_servers": {"url": "https://a.example"}}),
        (Dialect.ANTHROPIC, {"mcp_servers": ["https://a.example"]}), (Dialect.ANTHROPIC, {"mcp_servers": "a"}),
        (Dialect.OPENROUTER, {"plugins": {"id": "web"}}), (Dialect.OPENROUTER, {"plugins": "web"}),
        (Dialect.OPENROUTER, {"tools": [{"type": "openrouter:web_search", "parameters": [{"max_uses": 1}]}]}),
    ],
)  # fmt: skip
def test_other_fields_about_tools_that_cannot_be_read_are_refused(dialect: Dialect, body: Any) -> None:
    with pytest.raises(InvalidInput) as refusal:
        call(dialect, body)
    assert refusal.value.details["fields"]


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.OPENAI, {"tools": None}), (Dialect.OPENAI, {"tools": []}), (Dialect.OPENAI, {"tool_choice": "auto"}),
        (Dialect.OPENAI, {"tool_choice": {"type": "function", "function": {"name": "f"}}, "web_search_options": None}),
        (Dialect.OPENAI, {"input": [{"type": "mcp_list_tools", "tools": [{"name": "t", "annotations": {}}]}]}),
        (Dialect.ANTHROPIC, {"mcp_servers": [], "tool_choice": {"type": "any"}}),
        (Dialect.ANTHROPIC, {"tools": [{"name": "f", "input_schema": {}, "a_flag_of_tomorrow": True}]}),
        (Dialect.ANTHROPIC, {"tools": [{"type": None, "name": "f", "cache_control": {"type": "ephemeral"}}]}),
        (Dialect.GEMINI, {"tools": {"functionDeclarations": [FUNCTION_OF_TEST]}}),
        (Dialect.GEMINI, {"tools": {"function_declarations": [FUNCTION_OF_TEST]}}),
        (Dialect.GEMINI, {"tools": [{}]}),
        (Dialect.OPENROUTER, {"plugins": [], "tools": [{"type": "function", "function": FUNCTION_OF_TEST}]}),
    ],
)  # fmt: skip
def test_tools_in_every_usual_form_are_read(dialect: Dialect, body: Any) -> None:
    assert call(dialect, {"model": "m", **body}).tools.image is None


def test_a_single_object_is_read_as_google_reads_it() -> None:
    for tools in ({"googleSearch": {}}, {"google_search": {}}, [{"google_search": {}}]):
        assert call(Dialect.GEMINI, {"model": "gemini-3.5-flash", "tools": tools}).searches == 10
    with pytest.raises(RouteNotAllowed):
        call(Dialect.GEMINI, {"tools": {"fileSearch": {}}})


def test_a_refusal_lists_the_available_tools() -> None:
    with pytest.raises(RouteNotAllowed) as refusal:
        call(Dialect.OPENAI, {"tools": [{"type": "file_search"}]})
    assert {"function", "custom", "mcp", "web_search", "code_interpreter"} <= set(refusal.value.details["allowed"])
    assert "web_search" in refusal.value.message


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.OPENAI, {"max_tool_calls": 1, "tools": [{"type": "image_generation", "output_format": "gif"}]}),
        (Dialect.OPENAI, {"max_tool_calls": 1, "tools": [{"type": "image_generation"}] * 2}),
        (
            Dialect.OPENAI,
            {"tools": [{"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "1t"}}]},
        ),
        (Dialect.OPENAI, {"max_tool_calls": 1e2, "tools": [{"type": "web_search"}]}),
        (Dialect.ANTHROPIC, {"tools": [{"type": "web_search_20250305", "max_uses": "100"}]}),
        (Dialect.OPENAI, {"service_tier": "tomorrow"}),
        (Dialect.GEMINI, {"serviceTier": "tomorrow"}),
        (Dialect.ANTHROPIC, {"tools": [{"type": "advisor_20260301"}]}),
        (Dialect.ANTHROPIC, {"fallbacks": [{"model": "claude-opus-5", "max_tokens": 128_000}]}),
        (Dialect.ANTHROPIC, {"fallbacks": [{}]}),
        (Dialect.OPENROUTER, {"plugins": {"id": "fusion"}}),
        (Dialect.OPENROUTER, {"plugins": "fusion"}),
    ],
)
def test_a_tool_of_unbounded_cost_is_refused(dialect: Dialect, body: Any) -> None:
    with pytest.raises(InvalidInput):
        call(dialect, body)


FUNCTION = {"name": "tools", "parameters": {"properties": {"tools": [{"type": "file_search"}]}}}


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.OPENAI, {"tools": [{"type": "function", **FUNCTION}, {"type": "custom", "name": "c"}]}),
        (Dialect.OPENAI, {"tools": [{"type": "computer_use_preview"}, {"type": "local_shell"}]}),
        (Dialect.OPENAI, {"tools": [{"type": "shell", "environment": {"type": "local"}}]}),
        (Dialect.OPENAI, {"tool_choice": {"type": "allowed_tools", "tools": [{"type": "image_generation"}]}}),
        (Dialect.OPENROUTER, {"tools": [{"type": "function", "function": FUNCTION}]}),
        (Dialect.GROQ, {"tools": [{"type": "function", "function": FUNCTION}]}),
        (Dialect.ANTHROPIC, {"tools": [{"name": "tools", "input_schema": {"tools": [{"type": "x"}]}}]}),
        (Dialect.ANTHROPIC, {"tools": [{"type": "bash_20250124", "name": "bash"}]}),
        (Dialect.ANTHROPIC, {"messages": [{"content": [{"type": "tool_use", "input": {"tools": [{"type": "x"}]}}]}]}),
        (Dialect.GEMINI, {"tools": [{"functionDeclarations": [{"name": "tools", "parameters": {}}]}]}),
        (Dialect.GEMINI, {"tools": [{"function_declarations": [FUNCTION]}]}),
        (Dialect.GEMINI, {"contents": [{"parts": [{"functionCall": {"args": {"tools": [{"x": 1}]}}}]}]}),
    ],
)
def test_client_side_tools_cost_nothing_more(dialect: Dialect, body: Any) -> None:
    params = call(dialect, body)
    assert params.tools.readers == params.searches == params.tools.container_nanos == 0
    assert params.tokens_in < 5_000


# Exact nano-dollars: input at most 1.25 (gpt-5), and what the tool itself bills.
@pytest.mark.parametrize(
    ("tool", "fees"),
    [
        # 10 searches at 10 USD per 1 000 calls.
        ({"type": "web_search"}, 100_000_000),
        ({"type": "web_search_preview"}, 250_000_000),
        ({"type": "code_interpreter", "container": {"type": "auto"}}, 30_000_000),
        ({"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "64g"}}, 1_920_000_000),
        ({"type": "shell", "environment": {"type": "container_auto", "memory_limit": "4g"}}, 120_000_000),
    ],
)
def test_tool_fees_are_held_in_addition_to_tokens_whatever_the_output_limit(tool: Any, fees: int) -> None:
    params = call(Dialect.OPENAI, {"model": "gpt-5", "input": "Hi", "max_output_tokens": 16, "tools": [tool]})
    found = quote(params)
    assert params.tokens_in > 100_000
    assert found.lines[0][0] == params.tokens_in * 1_250 + fees
    assert found.minimum_nanos == found.lines[0][0] + 16 * 10_000


def test_mcp_servers_are_covered_by_the_hold_with_and_without_a_toolset() -> None:
    servers = {"model": "claude-sonnet-4-5", "mcp_servers": [{"type": "url", "url": "https://a.example", "name": "a"}]}
    toolset = {"type": "mcp_toolset", "mcp_server_name": "a"}
    bare, named = call(Dialect.ANTHROPIC, servers), call(Dialect.ANTHROPIC, {**servers, "tools": [toolset]})
    assert bare.tools.readers == named.tools.readers == 1
    assert bare.tokens_in > 100_000


def test_the_searches_of_a_fallback_are_held() -> None:
    body = {"model": "openai/gpt-5", "models": ["openai/gpt-5:online"]}
    assert call(Dialect.OPENROUTER, body).searches == 10
    assert call(Dialect.OPENROUTER, {"model": "a/b", "models": ["a/b-search-preview"]}).searches == 10


def test_max_tool_calls_limits_the_searches() -> None:
    tools = {"model": "gpt-5", "tools": [{"type": "web_search"}]}
    assert call(Dialect.OPENAI, {**tools, "max_tool_calls": 2}).searches == 2
    assert call(Dialect.OPENAI, {**tools, "max_tool_calls": 40}).searches == 40
    assert call(Dialect.GEMINI, {"model": "gemini-2.5-flash", "tools": [{"googleSearch": {}}]}).searches == 1
    assert call(Dialect.GEMINI, {"model": "gemini-3.5-flash", "tools": [{"google_search": {}}]}).searches == 10


USAGE = {"input_tokens": 100, "output_tokens": 10, "total_tokens": 110}
TOKENS = 100 * 1_250 + 10 * 10_000


@pytest.mark.parametrize("memory", ["1g", "64g"])
@pytest.mark.parametrize("output", [[], [{"type": "code_interpreter_call", "id": "ci_1", "container_id": "c"}]])
def test_a_container_is_charged_even_if_unused(memory: str, output: list[Any]) -> None:
    tool = {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": memory}}
    params = call(Dialect.OPENAI, {"model": "gpt-5", "tools": [tool]})
    price = {"1g": 30_000_000, "64g": 1_920_000_000}[memory]
    assert charged(params, {"model": "gpt-5", "output": output, "usage": USAGE}) == TOKENS + price
    # Even if the response reports nothing.
    assert charged(params, {}) >= price


def test_the_searches_of_an_answer_are_charged_once_each() -> None:
    params = call(Dialect.OPENAI, {"model": "gpt-5", "tools": [{"type": "web_search"}]})
    items = [
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "a"}},
        {"type": "web_search_call", "id": "ws_2", "action": {"type": "open_page", "url": "https://a.example"}},
        {"type": "web_search_call", "id": "ws_3", "action": {"type": "search", "query": "b"}},
    ]
    plain = {"model": "gpt-5", "output": items, "usage": USAGE}
    assert charged(params, plain) == TOKENS + 2 * 10_000_000
    # The provider's count takes precedence: it excludes discounted searches.
    counted = {**plain, "tool_usage": {"web_search": {"num_requests": 1}}}
    assert charged(params, counted) == TOKENS + 10_000_000


def test_the_tool_calls_of_an_interrupted_stream_are_charged() -> None:
    params = call(Dialect.OPENAI, {"model": "gpt-5", "tools": [{"type": "web_search"}], "stream": True})
    answer = reader_of(params, status=200, content_type="text/event-stream")
    search = {"type": "web_search_call", "id": "ws_1", "action": {"type": "search", "query": "a"}}
    for event in (
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "web_search_call", "id": "ws_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": search},
        {"type": "response.output_text.delta", "delta": "four"},
    ):
        answer.feed(b"data: " + json.dumps(event).encode() + b"\n\n")
    reading = answer.finish(is_broken=True)
    cost = TokenPrices("openai").settle(params, reading, AT).cost_nanos
    assert cost == params.tokens_in_likely * 1_250 + 10_000 + 10_000_000


IMAGE_GEN = {
    "input_tokens": 50,
    "input_tokens_details": {"text_tokens": 50, "image_tokens": 0},
    "output_tokens": 4_160,
    "output_tokens_details": {"text_tokens": 0, "image_tokens": 4_160},
    "total_tokens": 4_210,
}


def test_images_are_charged_from_tool_usage_at_the_price_of_their_model() -> None:
    tool = {"type": "image_generation", "model": "gpt-image-1.5", "size": "1024x1024", "quality": "high"}
    params = call(Dialect.OPENAI, {"model": "gpt-5-nano", "tools": [tool], "max_tool_calls": 1})
    body = {
        "model": "gpt-5-nano",
        "usage": USAGE,
        "output": [{"type": "image_generation_call", "id": "ig_1", "status": "completed"}],
        "tool_usage": {"image_gen": IMAGE_GEN, "web_search": {"num_requests": 0}},
    }
    tail = {"usage": USAGE, "tool_usage": body["tool_usage"]}
    # gpt-5-nano 0.05 and 0.40 USD per million; gpt-image-1.5 5 for text and 32 for images.
    assert charged(params, body) == 100 * 50 + 10 * 400 + 50 * 5_000 + 4_160 * 32_000
    assert quote(params).worst_case.cost_nanos > charged(params, body)
    # Without details all of it is images; without usage of images, as much as was held for each.
    bare = {name: IMAGE_GEN[name] for name in ("input_tokens", "output_tokens")}
    assert charged(params, {**body, "tool_usage": {"image_gen": bare}}) == charged(params, body)
    assert charged(params, {**body, "tool_usage": {}}) > 7_500 * 32_000
    # Large images do not hide usage, before or after it.
    large = {"type": "image_generation_call", "id": "ig_1", "result": "A" * 9_000_000}
    assert charged(params, {"model": "gpt-5-nano", "output": [large], **tail}) == charged(params, body)
    assert charged(params, {**tail, "output": [large]}) == charged(params, body)
    # An unknown image model costs as much as the most expensive image model.
    del tool["model"]
    unknown = call(Dialect.OPENAI, {"model": "gpt-5-nano", "tools": [tool], "max_tool_calls": 1})
    assert charged(unknown, body) == 100 * 50 + 10 * 400 + 50 * 10_000 + 4_160 * 40_000


@pytest.mark.parametrize(
    ("model", "fee"),
    [
        ("gpt-4o-search-preview", 25_000_000),
        ("gpt-4o-mini-search-preview", 25_000_000),
        ("gpt-5-search-api", 10_000_000),
    ],
)
def test_a_chat_model_that_searches_is_charged_one_search_a_call(model: str, fee: int) -> None:
    params = call(Dialect.OPENAI, {"model": model}, "chat/completions")
    body = {"model": model, "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
    assert charged(params, body) == fee
    assert quote(params).minimum_nanos > fee


def test_code_execution_is_charged_an_hour_where_it_was_used() -> None:
    params = call(
        Dialect.ANTHROPIC,
        {"model": "claude-sonnet-5", "max_tokens": 100, "tools": [{"type": "code_execution_20260521"}]},
    )
    usage = {"input_tokens": 100, "output_tokens": 10}
    used = [{"type": "server_tool_use", "id": "srvtoolu_1", "name": "bash_code_execution", "input": {}}]
    tokens = 100 * 2_000 + 10 * 10_000
    assert charged(params, {"model": "claude-sonnet-5", "content": [], "usage": usage}) == tokens
    assert charged(params, {"model": "claude-sonnet-5", "content": used, "usage": usage}) == tokens + 50_000_000


def test_grounding_with_maps_is_charged_per_prompt() -> None:
    params = call(Dialect.GEMINI, {"model": "gemini-2.5-flash", "tools": [{"googleMaps": {}}]})
    usage = {"promptTokenCount": 100, "candidatesTokenCount": 10, "totalTokenCount": 110}
    chunks = [{"maps": {"uri": "https://maps.example", "title": "T"}}] * 3
    ended = {"finishReason": "STOP", "groundingMetadata": {"groundingChunks": chunks}}
    body = {"modelVersion": "gemini-2.5-flash", "usageMetadata": usage}
    tokens = 100 * 300 + 10 * 2_500
    assert charged(params, {**body, "candidates": [{"finishReason": "STOP"}]}) == tokens
    assert charged(params, {**body, "candidates": [ended]}) == tokens + 25_000_000


def test_an_advisor_is_held_at_its_own_price() -> None:
    tool = {"type": "advisor_20260301", "name": "advisor", "model": "claude-opus-5", "max_uses": 2, "max_tokens": 2_000}
    body = {"model": "claude-haiku-4-5", "max_tokens": 1_000, "inference_geo": "global"}
    plain, advised = call(Dialect.ANTHROPIC, body), call(Dialect.ANTHROPIC, {**body, "tools": [tool]})
    read = advised.tokens_in + 1_000
    # Haiku's input at its price for cache writes: 1.25; Opus 6.25 in, 25 out.
    assert quote(advised).lines[0][0] == advised.tokens_in * 1_250 + 2 * (read * 6_250 + 2_000 * 25_000)
    assert quote(plain).lines[0][0] == plain.tokens_in * 1_000


def test_the_summary_of_a_long_conversation_is_held() -> None:
    edit = {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 50_000}}
    body = {"model": "claude-opus-5", "max_tokens": 1_000, "inference_geo": "global"}
    managed = {**body, "context_management": {"edits": [edit]}}
    assert call(Dialect.ANTHROPIC, managed).tools.sub_calls == ()
    long = {**managed, "messages": [{"role": "user", "content": "A long report. " * 20_000}]}
    params = call(Dialect.ANTHROPIC, long)
    (summary,) = params.tools.sub_calls
    assert (summary.model, summary.calls) == ("claude-opus-5", 1)
    read = params.tokens_in + 1_000
    assert quote(params).lines[0][0] == params.tokens_in * 6_250 + read * 6_250 + summary.tokens_out * 25_000
