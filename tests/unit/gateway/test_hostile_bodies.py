"""Hostile bodies from anonymous clients: priced within bounds, or refused."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway.dialects.request.cost_params import MAX_TOKENS_OUT, Dialect
from app.gateway.pricing.quotes import rpc_methods
from app.gateway.validation import body as request_body
from app.gateway.validation import rules as request_rules
from app.gateway.validation.body import BodyKind
from app.gateway.validation.rules import FieldRule
from tests.support.provider_rows import read_request

_NAMES = st.sampled_from(
    [
        "model", "models", "messages", "role", "content", "type", "text", "image_url", "url", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "n", "best_of", "prompt", "stream", "stream_options",
        "include_usage", "generationConfig", "maxOutputTokens", "candidateCount", "contents", "parts", "inlineData",
        "tools", "function", "input", "instances", "parameters", "sampleCount", "service_tier", "cache_control",
        "previous_response_id", "googleSearch", "definition", "method", "params", "jsonrpc", "system", "source",
        "data", "file_id",
    ]
)  # fmt: skip
_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**90), max_value=10**90)
    | st.floats(allow_nan=False)
    | st.text(st.characters() | st.just("\ud800"), max_size=12)
    | _NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_NAMES, inner, max_size=4),
    max_leaves=14,
)
_OBJECTS = st.dictionaries(_NAMES, _VALUES, max_size=7)
_BODIES = (
    (_OBJECTS | _VALUES).map(lambda value: json.dumps(value).encode())
    | _OBJECTS.map(lambda value: json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass"))
    | st.binary(max_size=120)
    | st.text('{}[]":,\\0123456789.eE+-', max_size=120).map(str.encode)
)
_PATHS = [
    (Dialect.OPENAI, "chat/completions"), (Dialect.OPENAI, "completions"), (Dialect.OPENAI, "responses"),
    (Dialect.OPENAI, "embeddings"), (Dialect.OPENAI, "audio/speech"), (Dialect.OPENROUTER, "chat/completions"),
    (Dialect.ANTHROPIC, "v1/messages"), (Dialect.GEMINI, "v1beta/models/x:generateContent"),
    (Dialect.GEMINI, "v1beta/models/x:streamGenerateContent"), (Dialect.GEMINI, "v1beta/models/x:predict"),
    (Dialect.GEMINI, "v1beta/openai/chat/completions"),
    (Dialect.OPENAI, "images/edits"), (Dialect.OPENAI, "audio/transcriptions"),
]  # fmt: skip
_TYPES = st.sampled_from([None, "application/json", "multipart/form-data; boundary=x", "text/plain", "\xff"])


@pytest.mark.parametrize(("dialect", "path"), _PATHS)
@settings(max_examples=40)
@given(body=_BODIES, content_type=_TYPES)
@example(body=b"[" * 300_000, content_type="application/json")
@example(body=b'{"max_tokens": 1e999999999}', content_type="application/json")
@example(body=b'{"max_tokens": 1' + b"0" * 5_000 + b"}", content_type="application/json")
@example(body=b'{"model": "a", "mod\\u0065l": "b"}', content_type="application/json")
@example(body=b'\xef\xbb\xbf{"stream": true}', content_type=None)
def test_a_body_is_priced_within_bounds_or_refused(
    dialect: Dialect, path: str, body: bytes, content_type: str | None
) -> None:
    try:
        params = read_request(dialect, "POST", path, body=body, content_type=content_type)
    except (InvalidInput, RouteNotAllowed):
        return
    assert params.tokens_in_likely >= 0
    assert params.tokens_in >= 0
    assert 0 <= params.tokens_out <= MAX_TOKENS_OUT * 10_000 * 10_000
    assert params.body == body or json.loads(params.body)["stream_options"]["include_usage"] is True
    params.model.encode(errors="surrogatepass")


_REFUSED = tuple(
    FieldRule.parse(text) for text in ("previous_response_id", "file_id", "source{}", "url=^gs:", "tools=file")
)


@given(_BODIES)
def test_refused_fields_are_found_in_any_json(body: bytes) -> None:
    try:
        parsed = request_body.parse_body(BodyKind.JSON, body, None).parsed
    except InvalidInput:
        return
    with suppress(RouteNotAllowed, InvalidInput):
        request_rules.check_fields(_REFUSED, {"n": 3, "data": 0}, parsed)


@given(_BODIES)
@example(b"[" + b"{}," * 100_000 + b"{}]")
def test_a_batch_has_methods_or_is_refused(body: bytes) -> None:
    try:
        methods = rpc_methods(request_body.parse_body(BodyKind.JSON, body, None).parsed)
    except InvalidInput:
        return
    assert all(isinstance(method, str) for method in methods)
