"""Bodies that whoever has no key may send to be priced: priced, or refused as what they are."""

from __future__ import annotations

import json
from contextlib import suppress

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.errors import InvalidInput, RouteNotAllowed
from app.gateway import denials
from app.gateway.denials import FieldDenial
from app.gateway.dialects.facts import MOST_TOKENS_OUT, Dialect
from app.gateway.dialects.requests import read_call
from app.gateway.pricing import rpc_methods

_NAMES = st.sampled_from(
    [
        "model", "models", "messages", "role", "content", "type", "text", "image_url", "url", "max_tokens",
        "max_completion_tokens", "max_output_tokens", "n", "best_of", "prompt", "stream", "stream_options",
        "include_usage", "generationConfig", "maxOutputTokens", "candidateCount", "contents", "parts", "inlineData",
        "tools", "function", "input", "instances", "parameters", "sampleCount", "service_tier", "cache_control",
        "previous_response_id", "method", "params", "jsonrpc", "system", "source", "data", "file_id",
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
    (Dialect.OPENAI, "v1/chat/completions"), (Dialect.OPENAI, "v1/completions"), (Dialect.OPENAI, "v1/responses"),
    (Dialect.OPENAI, "v1/embeddings"), (Dialect.OPENAI, "v1/audio/speech"), (Dialect.OPENROUTER, "chat/completions"),
    (Dialect.ANTHROPIC, "v1/messages"), (Dialect.GEMINI, "v1beta/models/x:generateContent"),
    (Dialect.GEMINI, "v1beta/models/x:streamGenerateContent"), (Dialect.GEMINI, "v1beta/models/x:predict"),
    (Dialect.GEMINI, "v1beta/openai/chat/completions"),
]  # fmt: skip
_TYPES = st.sampled_from([None, "application/json", "multipart/form-data; boundary=x", "text/plain", "\xff"])


@pytest.mark.parametrize(("dialect", "path"), _PATHS)
@given(body=_BODIES, content_type=_TYPES)
@example(body=b"[" * 4_000_000, content_type="application/json")
@example(body=b'{"max_tokens": 1e999999999}', content_type="application/json")
@example(body=b'{"max_tokens": 1' + b"0" * 5_000 + b"}", content_type="application/json")
@example(body=b'{"model": "a", "mod\\u0065l": "b"}', content_type="application/json")
@example(body=b'\xef\xbb\xbf{"stream": true}', content_type=None)
def test_a_body_is_priced_within_bounds_or_refused(
    dialect: Dialect, path: str, body: bytes, content_type: str | None
) -> None:
    try:
        facts = read_call(dialect, "POST", path, body=body, content_type=content_type)
    except InvalidInput:
        return
    assert facts.tokens_in_likely >= 0
    assert facts.tokens_in >= 0
    assert 0 <= facts.tokens_out <= MOST_TOKENS_OUT * 10_000 * 10_000
    assert facts.body == body or json.loads(facts.body)["stream_options"]["include_usage"] is True
    facts.model.encode(errors="surrogatepass")


_DENIED = tuple(
    FieldDenial.parse(text)
    for text in ("previous_response_id", "file_id", "source{}", "url=^gs:", "tools=file")
)


@given(_BODIES)
@example(b'{"file_id":' * 300_000)
@example(b'["file_id",' + b"[" * 1_000_000)
def test_denied_fields_are_looked_for_in_anything(body: bytes) -> None:
    with suppress(RouteNotAllowed):
        denials.check_fields(_DENIED, body)


@given(_BODIES)
@example(b"[" + b"{}," * 100_000 + b"{}]")
def test_the_methods_of_a_batch_are_found_or_it_is_refused(body: bytes) -> None:
    try:
        methods = rpc_methods(body)
    except InvalidInput:
        return
    assert all(isinstance(method, str) for method in methods)
