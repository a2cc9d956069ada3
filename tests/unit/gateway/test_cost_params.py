"""Cost parameters of requests: limits are read from the upstream's fields, and hostile bodies cannot hide them."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request.cost_params import DEFAULT_TOKENS_OUT, MAX_TOKENS_OUT, CostParams, Dialect, Surface
from tests.support.provider_rows import FORM, form_of, read_request

HELLO = [{"role": "user", "content": "Hello"}]


def call(dialect: Dialect, path: str, body: Any = None, method: str = "POST") -> CostParams:
    raw = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
    return read_request(dialect, method, path, body=raw)


@pytest.mark.parametrize(
    ("dialect", "path", "surface"),
    [
        (Dialect.OPENAI, "chat/completions", Surface.CHAT),
        (Dialect.OPENAI, "completions", Surface.COMPLETIONS),
        (Dialect.OPENAI, "responses", Surface.RESPONSES),
        (Dialect.OPENAI, "responses/input_tokens", Surface.FREE),
        (Dialect.OPENAI, "embeddings", Surface.EMBEDDINGS),
        (Dialect.OPENAI, "moderations", Surface.FREE),
        (Dialect.OPENAI, "images/generations", Surface.IMAGES),
        (Dialect.OPENROUTER, "messages", Surface.MESSAGES),
        (Dialect.GROQ, "chat/completions", Surface.CHAT),
        (Dialect.ANTHROPIC, "v1/messages", Surface.MESSAGES),
        (Dialect.ANTHROPIC, "v1/messages/count_tokens", Surface.FREE),
        (Dialect.GEMINI, "v1beta/models/gemini-2.5-pro:generateContent", Surface.GENERATE),
        (Dialect.GEMINI, "v1beta/models/gemini-2.5-pro:streamGenerateContent", Surface.GENERATE),
        (Dialect.GEMINI, "v1/models/gemini-embedding-001:embedContent", Surface.EMBED_CONTENT),
        (Dialect.GEMINI, "v1beta/models/gemini-2.5-pro:countTokens", Surface.FREE),
        (Dialect.GEMINI, "v1beta/models/veo:predict", Surface.OPAQUE),
        (Dialect.GEMINI, "v1beta/openai/chat/completions", Surface.CHAT),
    ],
)
def test_a_route_determines_the_surface(dialect: Dialect, path: str, surface: Surface) -> None:
    assert call(dialect, path, {"model": "m"}).surface is surface


@pytest.mark.parametrize(
    ("dialect", "path", "body", "tokens_out", "is_stated"),
    [
        (Dialect.OPENAI, "chat/completions", {}, DEFAULT_TOKENS_OUT, False),
        (Dialect.OPENAI, "chat/completions", {"max_tokens": 5}, 5, True),
        (Dialect.OPENAI, "chat/completions", {"max_completion_tokens": 7, "max_tokens": 5}, 7, True),
        (Dialect.OPENAI, "chat/completions", {"max_tokens": 5, "n": 3}, 15, True),
        (Dialect.OPENAI, "chat/completions", {"max_tokens": 5, "n": None}, 5, True),
        (Dialect.OPENAI, "chat/completions", {"max_output_tokens": 5}, DEFAULT_TOKENS_OUT, False),
        (Dialect.OPENAI, "chat/completions", {"max_tokens": 0}, DEFAULT_TOKENS_OUT, False),
        (Dialect.OPENAI, "chat/completions", {"max_tokens": 0, "max_completion_tokens": 1}, DEFAULT_TOKENS_OUT, False),
        (Dialect.OPENAI, "chat/completions", {"max_tokens": 10**30}, MAX_TOKENS_OUT, True),
        (Dialect.OPENAI, "chat/completions", b'{"max_tokens": 1e30}', MAX_TOKENS_OUT, True),
        (Dialect.OPENAI, "chat/completions", b'{"max_tokens": 1e999999}', MAX_TOKENS_OUT, True),
        (Dialect.OPENAI, "chat/completions", b'{"max_tokens": 12.0}', 12, True),
        (Dialect.OPENAI, "completions", {"max_tokens": 5, "best_of": 4, "n": 2}, 20, True),
        (Dialect.OPENAI, "completions", {"max_tokens": 5, "prompt": ["a", "b"]}, 10, True),
        (Dialect.OPENAI, "completions", {"max_tokens": 5, "prompt": [1, 2, 3]}, 5, True),
        (Dialect.OPENAI, "responses", {"max_output_tokens": 9}, 9, True),
        (Dialect.OPENAI, "responses", {"max_tokens": 9}, DEFAULT_TOKENS_OUT, False),
        (Dialect.OPENAI, "embeddings", {"input": "x"}, 0, False),
        (Dialect.ANTHROPIC, "v1/messages", {"max_tokens": 1024}, 1024, True),
        (Dialect.GEMINI, "v1beta/models/m:generateContent", {}, DEFAULT_TOKENS_OUT, False),
        (Dialect.GEMINI, "v1beta/models/m:generateContent", {"generationConfig": {"maxOutputTokens": 8}}, 8, True),
        (Dialect.GEMINI, "v1beta/models/m:generateContent", {"generationConfig": {"maxOutputTokens": "8"}}, 8, True),
        (
            Dialect.GEMINI,
            "v1beta/models/m:generateContent",
            {"generation_config": {"max_output_tokens": 8, "maxOutputTokens": 1}},
            8,
            True,
        ),
        (
            Dialect.GEMINI,
            "v1beta/models/m:generateContent",
            {"generationConfig": {"maxOutputTokens": 8, "candidateCount": 2}},
            16,
            True,
        ),
        (Dialect.GEMINI, "v1beta/models/m:generateContent", {"max_tokens": 1}, DEFAULT_TOKENS_OUT, False),
        (Dialect.GEMINI, "v1beta/models/m:embedContent", {}, 0, False),
    ],
)
def test_the_output_limit_is_read_from_the_fields_of_the_upstream(
    dialect: Dialect,
    path: str,
    body: Any,
    tokens_out: int,
    is_stated: bool,  # noqa: FBT001
) -> None:
    params = call(dialect, path, body)
    assert (params.tokens_out, params.is_tokens_out_set) == (tokens_out, is_stated)


@pytest.mark.parametrize(
    "body",
    [
        {"max_tokens": -1}, {"max_tokens": True}, {"max_tokens": "many"}, {"max_tokens": [1]}, {"max_tokens": 1.5},
        {"n": -1}, {"n": False}, {"n": {}}, {"stream": "true"}, {"stream": 1}, {"model": 5}, {"model": ["a"]},
        b'{"max_tokens": 1, "max_tokens": 100000}', b'{"a": {"b": 1, "b": 2}}', b"[]", b'"x"', b"{", b"nonsense",
        b'{"a": NaN}', b'{"a":' + b"[" * 300 + b"]" * 300 + b"}", b"[" * 1_000_000, json.dumps({}).encode("utf-16"),
        b'{"max_tokens": ' + b"9" * 10_000 + b"}", b"\xff\xfe{}", {"stream": True, "stream_options": []},
        {"stream": True, "stream_options": {"include_usage": "yes"}},
    ],
)  # fmt: skip
def test_a_body_that_hides_its_limits_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput):
        call(Dialect.OPENAI, "chat/completions", body)


@pytest.mark.parametrize(
    "body",
    [
        {"generationConfig": 5},
        {"generationConfig": {"maxOutputTokens": -3}},
        # The upstream may read the other one.
        {"generationConfig": {"maxOutputTokens": 1}, "generation_config": {}},
    ],
)
def test_a_gemini_body_that_hides_its_limits_is_refused(body: Any) -> None:
    with pytest.raises(InvalidInput):
        call(Dialect.GEMINI, "v1beta/models/m:generateContent", body)


def test_a_deep_tool_schema_is_accepted() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(30):
        schema = {"type": "object", "properties": {"inner": schema}}
    assert call(Dialect.OPENAI, "chat/completions", {"tools": [{"type": "function", "function": schema}]})


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            [
                "model", "models", "messages", "content", "parts", "contents", "input", "type", "image_url", "url",
                "source", "data", "max_tokens", "n", "best_of", "prompt", "stream", "stream_options", "include_usage",
                "tools", "max_uses", "generationConfig", "candidateCount", "inlineData", "mimeType", "fileData",
                "system", "file", "file_data", "input_audio", "plugins", "service_tier", "systemInstruction",
                "googleSearch", "requests",
            ]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=25,
)  # fmt: skip
PATHS = st.sampled_from(
    [
        (Dialect.OPENAI, "chat/completions"), (Dialect.OPENAI, "completions"), (Dialect.OPENAI, "responses"),
        (Dialect.OPENAI, "embeddings"), (Dialect.OPENAI, "images/generations"), (Dialect.ANTHROPIC, "v1/messages"),
        (Dialect.OPENROUTER, "chat/completions"), (Dialect.GROQ, "chat/completions"),
        (Dialect.GEMINI, "v1beta/models/m:generateContent"), (Dialect.GEMINI, "v1beta/models/m:embedContent"),
        (Dialect.GEMINI, "v1beta/models/m:streamGenerateContent"), (Dialect.OPENAI, "images/edits"),
    ]
)  # fmt: skip


@given(ANYTHING, PATHS)
def test_no_body_makes_reading_fail(body: Any, route: tuple[Dialect, str]) -> None:
    raw = json.dumps(body).encode()
    try:
        params = read_request(route[0], "POST", route[1], body=raw, content_type="application/json")
    except (InvalidInput, RouteNotAllowed):
        return
    assert 0 <= params.tokens_in_likely <= params.tokens_in <= 10**9
    assert 0 <= params.tokens_out <= 10**15
    assert params.candidates >= 1
    assert (params.body == raw) is not params.usage_injected


@given(st.binary(max_size=300), PATHS, st.none() | st.text(max_size=20) | st.just("multipart/form-data; boundary=x"))
def test_no_bytes_make_reading_fail(raw: bytes, route: tuple[Dialect, str], content_type: str | None) -> None:
    try:
        read_request(route[0], "POST", route[1], body=raw, content_type=content_type)
    except (InvalidInput, RouteNotAllowed) as refusal:
        assert refusal.message  # noqa: PT017 - arbitrary bytes are mostly refused; what counts is how


def test_a_recording_at_a_url_is_refused_even_next_to_a_short_file() -> None:
    for more in ([], [('file; filename="a.wav"', b"RIFF")]):
        form = form_of(("model", b"whisper-large-v3"), ("url", b"https://a.example/days.ogg"), *more)
        with pytest.raises(InvalidInput, match="url is not forwarded"):
            read_request(Dialect.GROQ, "POST", "audio/transcriptions", body=form, content_type=FORM)


INJECTED = [
    (b'{"stream":true}', b'{"stream_options":{"include_usage":true},"stream":true}'),
    (b' {\n"stream": true }\n', b' {"stream_options":{"include_usage":true},\n"stream": true }\n'),
    (
        b'{"a":1e2, "stream_options" : {"x": 1.50}, "stream":true}',
        b'{"a":1e2, "stream_options" : {"include_usage":true,"x": 1.50}, "stream":true}',
    ),
    (
        b'{"stream_options":{"include_obfuscation":false,"include_usage": false},"stream":true}',
        b'{"stream_options":{"include_obfuscation":false,"include_usage": true},"stream":true}',
    ),
    (b'{"stream_options":{ },"stream":true}', b'{"stream_options":{"include_usage":true},"stream":true}'),
    (b'{"stream_options":null,"stream":true}', b'{"stream_options":{"include_usage":true},"stream":true}'),
    (
        '{"s":"\\"stream_options\\":{} 日","stream_options":{},"stream":true}'.encode(),
        '{"s":"\\"stream_options\\":{} 日","stream_options":{"include_usage":true},"stream":true}'.encode(),
    ),
]


@pytest.mark.parametrize(("came", "goes"), INJECTED)
def test_usage_is_requested_and_every_other_byte_stays(came: bytes, goes: bytes) -> None:
    params = call(Dialect.OPENAI, "chat/completions", came)
    assert (params.body, params.usage_injected) == (goes, True)


@pytest.mark.parametrize(
    ("dialect", "path"),
    [(Dialect.ANTHROPIC, "v1/chat/completions"), (Dialect.GEMINI, "v1beta/openai/chat/completions")],
)
def test_usage_is_requested_for_openai_streams_of_other_providers(dialect: Dialect, path: str) -> None:
    # Their thinking is billed and not in the stream: only the usage shows its cost.
    assert call(dialect, path, b'{"stream":true}').usage_injected


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        (Dialect.OPENAI, "chat/completions", b'{"stream":true,"stream_options":{"include_usage":true}}'),
        (Dialect.OPENAI, "chat/completions", b'{"stream":false}'),
        (Dialect.OPENAI, "chat/completions", b"{}"),
        (Dialect.OPENAI, "responses", b'{"stream":true}'),
        (Dialect.OPENROUTER, "chat/completions", b'{"stream":true}'),
        (Dialect.GROQ, "chat/completions", b'{"stream":true}'),
        (Dialect.ANTHROPIC, "v1/messages", b'{"stream":true}'),
        (Dialect.GEMINI, "v1beta/models/m:streamGenerateContent", b"{}"),
    ],
)
def test_a_body_that_needs_no_change_is_not_changed(dialect: Dialect, path: str, body: bytes) -> None:
    params = call(dialect, path, body)
    assert (params.body, params.usage_injected) == (body, False)


@pytest.mark.parametrize(
    "text",
    [
        "The quick brown fox jumps over the lazy dog. " * 100,
        "def f(x):\n    return {'a': [x, 1, 2.5], \"b\": None}\n" * 100,
        "敏捷的棕色狐狸跳过了懒狗。" * 100,
        "3.14159,2.71828,1.41421\n" * 100,
        "🙂🙃🤖" * 100,
    ],
)
def test_the_input_bound_holds_for_any_text(text: str) -> None:
    params = call(Dialect.OPENAI, "chat/completions", {"messages": [{"role": "user", "content": text}]})
    # A byte-level tokenizer makes at most one token per byte, and at least one per eight bytes.
    assert len(text.encode()) // 8 < params.tokens_in_likely <= params.tokens_in
    assert params.tokens_in >= sum(-(-len(word) // 2) for word in text.split())
    assert params.tokens_in < len(json.dumps(text)) + 500


PICTURE = base64.b64encode(b"\x89PNG" + bytes(600_000)).decode()


@pytest.mark.parametrize(
    ("dialect", "path", "body"),
    [
        (
            Dialect.OPENAI,
            "chat/completions",
            {
                "messages": [
                    {"content": [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}]}
                ]
            },
        ),
        (
            Dialect.OPENAI,
            "responses",
            {"input": [{"content": [{"type": "input_image", "image_url": f"data:image/png;base64,{PICTURE}"}]}]},
        ),
        (
            Dialect.ANTHROPIC,
            "v1/messages",
            {"messages": [{"content": [{"type": "image", "source": {"type": "base64", "data": PICTURE}}]}]},
        ),
        (
            Dialect.ANTHROPIC,
            "v1/messages",
            {
                "messages": [
                    {
                        "content": [
                            {
                                "type": "tool_result",
                                "content": [{"type": "image", "source": {"type": "base64", "data": PICTURE}}],
                            }
                        ]
                    }
                ]
            },
        ),
        (
            Dialect.GEMINI,
            "v1beta/models/m:generateContent",
            {"contents": [{"parts": [{"inlineData": {"mimeType": "image/png", "data": PICTURE}}]}]},
        ),
    ],
)
def test_an_image_counts_as_an_image_not_as_its_base64(dialect: Dialect, path: str, body: Any) -> None:
    params = call(dialect, path, body)
    assert params.has_media
    assert 1_000 < params.tokens_in_likely < 5_000 < params.tokens_in < 16_000


def test_an_image_in_an_unknown_place_counts_as_text() -> None:
    block = {"type": "image", "source": {"type": "base64", "data": PICTURE}}
    for body in (
        {"tools": [{"input_schema": {"examples": [block]}}]},
        {"messages": [{"content": [{"type": "tool_use", "input": block}]}]},
    ):
        params = call(Dialect.ANTHROPIC, "v1/messages", body)
        assert not params.has_media
        assert params.tokens_in > len(PICTURE) // 2


@pytest.mark.parametrize(
    ("block", "at_least"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a.example/x.png"}}, 5_000),
        ({"type": "file", "file": {"file_data": "data:application/pdf;base64," + "A" * 40_000}}, 40_000),
        ({"type": "input_audio", "input_audio": {"data": "A" * 640_000, "format": "mp3"}}, 20_000),
        ({"inlineData": {"mimeType": "video/mp4", "data": "A" * 640_000}}, 20_000),
    ],
)
def test_media_bounds_cover_the_largest_content(block: Any, at_least: int) -> None:
    params = call(Dialect.OPENAI, "chat/completions", {"messages": [{"content": [block]}]})
    assert params.has_media
    assert params.tokens_in >= at_least


@pytest.mark.parametrize(
    ("dialect", "body", "searches"),
    [
        (Dialect.OPENAI, {"tools": [{"type": "web_search_preview"}]}, 10),
        (Dialect.ANTHROPIC, {"tools": [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}]}, 3),
        (Dialect.GEMINI, {"tools": [{"google_search": {}}]}, 10),
        (Dialect.OPENAI, {"web_search_options": {}}, 1),
        (Dialect.OPENROUTER, {"model": "openai/gpt-5:online"}, 10),
        (Dialect.OPENROUTER, {"plugins": [{"id": "web"}]}, 10),
        (Dialect.OPENAI, {"tools": [{"type": "function", "function": {"name": "web_search"}}]}, 0),
        (Dialect.ANTHROPIC, {"tools": [{"name": "search", "input_schema": {}}]}, 0),
        (Dialect.GEMINI, {"tools": [{"functionDeclarations": [{"name": "search"}]}]}, 0),
    ],
)
def test_searches_of_the_provider_are_included(dialect: Dialect, body: Any, searches: int) -> None:
    paths = {Dialect.GEMINI: "v1beta/models/m:generateContent", Dialect.ANTHROPIC: "v1/messages"}
    params = call(dialect, paths.get(dialect, "chat/completions"), body)
    assert params.searches == searches
    assert (params.tokens_in > 50_000) is bool(searches)


def test_a_form_with_a_recording_names_its_model() -> None:
    form = form_of(("model", b"whisper-1"), ('file; filename="a.mp3"', bytes(64_000)))
    params = read_request(Dialect.OPENAI, "POST", "audio/transcriptions", body=form, content_type=FORM)
    assert (params.surface, params.model, params.has_media) == (Surface.TRANSCRIPTION, "whisper-1", True)


def test_images_requested_by_a_form_are_counted() -> None:
    form = form_of(("model", b"gpt-image-1"), ("n", b"3"), ('image[]; filename="a.png"', b"x"), ("prompt", b"cat"))
    params = read_request(Dialect.OPENAI, "POST", "images/edits", body=form, content_type=FORM)
    assert (params.candidates, params.tokens_out) == (3, 3 * 6_240)
