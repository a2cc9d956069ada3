# ruff: noqa: E501, FBT001 - events are easier to compare on one line
"""Streams whose usage is missing, huge, wrong or cut: never charged more than their content, nor less than reported."""

from __future__ import annotations

import base64
import json
import tracemalloc
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.response.abridged_json import AbridgedJson
from app.gateway.dialects.response.response_reader import MAX_EVENT_BYTES
from app.gateway.dialects.response.usage_readers import Usage, UsageReading
from app.gateway.pricing.quotes import TokenPrices
from tests.support import recorded_answers as recorded
from tests.support.provider_rows import read_request
from tests.support.response_readers import reader_of

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
SSE = "text/event-stream"
HUGE = "QUJD" * (MAX_EVENT_BYTES // 4 + 1)
TABLES = {Dialect.OPENAI: "openai", Dialect.ANTHROPIC: "anthropic", Dialect.GEMINI: "google"}
TABLES |= {Dialect.OPENROUTER: "openrouter", Dialect.GROQ: "groq"}
ONE, MILLION = 1_000, 1_000_000


class Stream(NamedTuple):
    """A recorded stream, and an event of its dialect with a huge picture and without text."""

    surface: Surface
    dialect: Dialect
    model: str
    write: Callable[[str], bytes]
    picture: dict[str, Any]
    error: dict[str, Any]


def chat_error(**more: Any) -> dict[str, Any]:
    return {"error": {"code": "server_error", "message": "The provider disconnected"}, **more}


PICTURE = {"choices": [{"index": 0, "delta": {"images": [{"image_url": {"url": f"data:image/png;base64,{HUGE}"}}]}}]}
STREAMS = [
    Stream(Surface.CHAT, Dialect.OPENAI, "gpt-5", lambda end: recorded.chat_stream(end, asked=True), PICTURE, chat_error()),
    Stream(Surface.CHAT, Dialect.GROQ, "openai/gpt-oss-20b", recorded.groq_stream, PICTURE, chat_error()),
    Stream(
        Surface.CHAT, Dialect.OPENROUTER, "openai/gpt-5-mini", recorded.openrouter_stream, PICTURE,
        chat_error(choices=[{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]),
    ),
    Stream(
        Surface.RESPONSES, Dialect.OPENAI, "gpt-5", recorded.responses_stream,
        {"type": "response.image_generation_call.partial_image", "partial_image_b64": HUGE},
        {"type": "response.failed", "response": {"status": "failed", "error": {"code": "server_error"}, "usage": None}},
    ),
    Stream(
        Surface.MESSAGES, Dialect.ANTHROPIC, "claude-sonnet-4-5", recorded.message_stream,
        {"type": "content_block_start", "index": 1, "content_block": {"type": "image", "source": {"data": HUGE}}},
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ),
    Stream(
        Surface.GENERATE, Dialect.GEMINI, "gemini-2.5-pro", recorded.gemini_stream,
        {"candidates": [{"content": {"parts": [{"inlineData": {"mimeType": "image/png", "data": HUGE}}]}}]},
        {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}},
    ),
]  # fmt: skip
NAMES = [f"{each.dialect}-{each.surface}" for each in STREAMS]


def params(stream: Stream, **more: Any) -> CostParams:
    wanted = {
        "model": stream.model,
        "is_streamed": True,
        "tokens_in": 2_000,
        "tokens_in_likely": 1_000,
        "tokens_out": 16_000,
        **more,
    }
    return CostParams(stream.surface, stream.dialect, **wanted)


def read(call: CostParams, chunks: list[bytes], kind: str = SSE, *, is_broken: bool = False) -> UsageReading:
    reader = reader_of(call, status=200, content_type=kind)
    assert b"".join([*(reader.feed(chunk) for chunk in chunks), b"" if is_broken else reader.flush()]) == b"".join(
        chunks
    )
    return reader.finish(is_broken=is_broken)


def cost(call: CostParams, reading: UsageReading) -> int:
    return TokenPrices(TABLES[call.dialect]).settle(call, reading, AT).cost_nanos


def price(call: CostParams, tokens_in: int, tokens_out: int) -> int:
    usage = Usage(tokens_in, tokens_out)
    return cost(call, UsageReading(usage=usage, is_complete=True))


def in_pieces(whole: bytes) -> list[bytes]:
    return [whole[at : at + 65_536] for at in range(0, len(whole), 65_536)]


def events(stream: Stream, end: str = "\n") -> list[bytes]:
    whole = stream.write(end)
    stop = (end * 2).encode()
    return [each + stop for each in whole.split(stop)[:-1]]


def without_usage(event: bytes, zero: bool) -> bytes:
    """Return an event without its counts, or with zeros."""

    def changed(value: Any, name: str = "") -> Any:
        if isinstance(value, dict):
            return {
                key: changed(each, key) for key, each in value.items() if zero or key not in {"usage", "usageMetadata"}
            }
        if isinstance(value, list):
            return [changed(each) for each in value]
        counts = name.endswith(("_tokens", "TokenCount", "tokenCount"))
        return 0 if counts and isinstance(value, int) else None if name == "cost" else value

    head, mark, body = event.partition(b"data: {")
    if not mark:
        return event
    return head + b"data: " + json.dumps(changed(json.loads(b"{" + body)), ensure_ascii=False).encode() + b"\n\n"


@settings(max_examples=50)
@given(st.data())
@pytest.mark.parametrize("stream", STREAMS, ids=NAMES)
def test_no_fault_at_any_place_of_a_stream_is_charged_more_than_content_or_less_than_reported(
    stream: Stream, data: st.DataObject
) -> None:
    whole = events(stream)
    fault = data.draw(st.sampled_from(["cut", "error", "comment", "missing", "zero", "broken"]))
    at = data.draw(st.integers(0, len(whole)))
    if fault in {"cut", "broken"}:
        sent = [b"".join(whole)[: data.draw(st.integers(0, len(b"".join(whole))))]]
    elif fault == "error":
        sent = [*whole[:at], recorded.data(stream.error)]
    elif fault == "comment":
        sent = [*whole[:at], b": keep-alive " + b"x" * 500 + b"\n\n", *whole[at:]]
    else:
        sent = [without_usage(each, fault == "zero") for each in whole]
    cuts = data.draw(st.lists(st.integers(0, len(b"".join(sent))), max_size=10))
    ends = sorted({0, len(b"".join(sent)), *cuts})
    chunks = [b"".join(sent)[a:b] for a, b in pairwise(ends)]
    call = params(stream)
    reading = read(call, chunks, is_broken=fault == "broken")
    content = "".join(recorded.WORDS).encode()
    usual = read(call, whole)
    assert usual.usage is not None
    # The content's price, at four bytes a token, and the input; or what was reported.
    most = max(price(call, 2_000, len(content) // 4 + 2), cost(call, usual))
    charged = cost(call, reading)
    assert charged <= most, (fault, at)
    if fault == "comment":
        assert charged == cost(call, usual)
    if reading.usage is not None and not reading.has_failed:
        assert charged >= cost(call, reading._replace(is_complete=True, streamed_bytes=0))
    if fault == "error" and not reading.streamed_bytes:
        assert charged == 0


# Each place and line end with two of the streams: events are found before their dialect matters.
PLACES = [(0.0, "\r\n"), (0.5, "\n"), (1.0, "\r")] * 2


@pytest.mark.parametrize(("stream", "place", "end"), [(s, *p) for s, p in zip(STREAMS, PLACES, strict=True)], ids=NAMES)
def test_a_huge_picture_hides_no_usage_and_is_no_content(stream: Stream, place: float, end: str) -> None:
    call, usual = params(stream), events(stream)
    at = int(place * (len(usual) - 1))
    sent = b"".join([*usual[:at], recorded.data(stream.picture, end), *usual[at:]])
    reading = read(call, in_pieces(sent))
    assert (reading.usage, reading.streamed_bytes) == (read(call, usual).usage, read(call, usual).streamed_bytes)
    # Even without usage, its bytes are no tokens.
    silent = [without_usage(each, zero=False) for each in events(stream)]
    with_picture = read(call, [*silent[:-1], *in_pieces(recorded.data(stream.picture)), silent[-1]])
    assert cost(call, with_picture) == cost(call, read(call, silent)) > 0


IMAGE_GEN = {"input_tokens": 50, "output_tokens": 1056, "total_tokens": 1106}
HUGE_EVENTS: list[tuple[Surface, Dialect, dict[str, Any], Usage]] = [
    (
        Surface.RESPONSES,
        Dialect.OPENAI,
        {
            "type": "response.completed",
            "response": {
                "model": "gpt-5-mini",
                "output": [{"type": "image_generation_call", "id": "ig", "result": HUGE}],
                "usage": {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200},
            },
        },
        Usage(1000, 200),
    ),
    (
        Surface.CHAT,
        Dialect.OPENAI,
        {"usage": {"prompt_tokens": 7, "completion_tokens": 9}, "choices": [{"delta": {"audio": {"data": HUGE}}}]},
        Usage(7, 9),
    ),
    (
        Surface.IMAGES,
        Dialect.OPENAI,
        {"type": "image_generation.completed", "b64_json": HUGE, "usage": {"input_tokens": 7, "output_tokens": 9}},
        Usage(7, 9, image_out=9),
    ),
    (
        Surface.GENERATE,
        Dialect.GEMINI,
        {
            "candidates": [{"content": {"parts": [{"inlineData": {"data": HUGE}}]}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 9, "totalTokenCount": 16},
        },
        Usage(7, 9),
    ),
    (
        Surface.CHAT,
        Dialect.OPENROUTER,
        {**PICTURE, "usage": {"prompt_tokens": 7, "completion_tokens": 9, "cost": 0.25}},
        Usage(7, 9, cost_nanos=250 * MILLION),
    ),
    (
        Surface.MESSAGES,
        Dialect.ANTHROPIC,
        {"type": "message_delta", "odd": {"deep": [HUGE]}, "usage": {"input_tokens": 7, "output_tokens": 9}},
        Usage(7, 9),
    ),
]


# Every event in one form, and every form with one event: events are found before their dialect matters.
FORMS = [
    *((*row, "\n") for row in HUGE_EVENTS),
    (*HUGE_EVENTS[0], "\r\n"),
    (*HUGE_EVENTS[1], "lines"),
    (*HUGE_EVENTS[2], "plain"),
    (*HUGE_EVENTS[3], "array"),
]


@pytest.mark.parametrize(("surface", "dialect", "event", "usage", "form"), FORMS)
def test_the_usage_in_a_huge_event_is_read(
    surface: Surface, dialect: Dialect, event: dict[str, Any], usage: Usage, form: str
) -> None:
    kind = SSE if form not in {"array", "plain"} else "application/json"
    text = json.dumps(event, indent=1 if form == "lines" else None)
    sent = text.encode()
    if kind == SSE:
        end = "\n" if form == "lines" else form
        sent = "".join(f"data: {line}{end}" for line in text.split("\n")).encode() + end.encode()
    call = CostParams(surface, dialect, model="m", is_streamed=form != "plain")
    reading = read(call, in_pieces(b": hello\n\n" + sent if kind == SSE else sent), kind)
    assert reading.usage is not None
    assert reading.usage._replace(is_undivided=False, undivided_in=0) == usage
    assert reading.streamed_bytes == 0


def test_a_huge_event_is_read_in_bounded_memory() -> None:
    piece = b"QUJD" * 16_384
    reader = reader_of(params(STREAMS[3]), status=200, content_type=SSE)
    tracemalloc.start()
    reader.feed(b'data: {"type":"response.completed","response":{"output":[{"result":"')
    for _ in range(1_000):
        reader.feed(piece)
    reader.feed(b'"}],"usage":{"input_tokens":1000,"output_tokens":200}}}\n\n')
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reader.finish().usage == Usage(1000, 200, undivided_in=1000, is_undivided=True)
    assert most < 4 * MAX_EVENT_BYTES < 1_000 * len(piece)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.text(min_size=3_000, max_size=3_001),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=12,
)


def emptied(value: Any) -> Any:
    if isinstance(value, str):
        return "" if len(json.dumps(value)) > 1_026 else value
    if isinstance(value, list):
        return [emptied(each) for each in value]
    return {name: emptied(each) for name, each in value.items()} if isinstance(value, dict) else value


@given(VALUES, st.lists(st.integers(0, 10_000), max_size=20), st.booleans())
def test_abridging_in_any_pieces_keeps_all_but_long_strings(value: Any, cuts: list[int], is_ascii: bool) -> None:
    whole = json.dumps(value, ensure_ascii=is_ascii).encode("utf-8", "surrogatepass")
    ends = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    abridged = AbridgedJson()
    for a, b in pairwise(ends):
        abridged.feed(whole[a:b])
    if is_ascii:
        assert json.loads(abridged.text()) == emptied(value)
    else:
        assert json.loads(abridged.text().decode("utf-8", "surrogatepass")) is not Ellipsis


# A part is large from a MiB on.
@pytest.mark.parametrize(
    ("large", "is_last"),
    [
        (lambda: {"data": [{"embedding": [0.25] * 180_000}] * 3}, True),
        (lambda: {"response": {"text": {"schema": {str(each): each for each in range(65_000)}}}}, True),
        (lambda: {"choices": [{"logprobs": {"content": [{"token": "a", "logprob": -0.25}] * 35_000}}]}, True),
        (lambda: {"a": {"b": {"c": [[] for _ in range(270_000)]}}}, True),
        (lambda: {"a": {"b": {"c": [[] for _ in range(270_000)]}}}, False),
    ],
)
def test_no_large_part_hides_the_usage(large: Callable[[], dict[str, Any]], is_last: bool) -> None:
    usage = {"usage": {"prompt_tokens": 7, "completion_tokens": 9}}
    parts = {**large(), **usage} if is_last else {**usage, **large()}
    body = json.dumps({"id": HUGE, **parts}).encode()
    assert len(body) > MAX_EVENT_BYTES
    call = CostParams(Surface.CHAT, Dialect.OPENAI, model="m")
    reading = read(call, in_pieces(body), "application/json")
    assert reading.usage is not None
    assert (reading.usage.tokens_in, reading.usage.tokens_out) == (7, 9)


def test_hostile_depth_hides_no_usage() -> None:
    body = b'{"a":{"b":' + b"[" * 5_000_000 + b"]" * 5_000_000 + b'},"usage":{"prompt_tokens":7,"completion_tokens":9}}'
    reading = read(CostParams(Surface.CHAT, Dialect.OPENAI, model="m"), in_pieces(body), "application/json")
    assert reading.usage is not None
    assert reading.usage.tokens_in == 7


def test_long_text_in_a_huge_event_is_content() -> None:
    call = params(STREAMS[0])
    text = ("é\n" + "word " * 20) * (MAX_EVENT_BYTES // 100)
    for ascii_only in (True, False):
        event = json.dumps({"choices": [{"delta": {"content": text}}]}, ensure_ascii=ascii_only)
        size = read(call, in_pieces(f"data: {event}\n\n".encode())).streamed_bytes
        assert len(text.encode()) <= size <= len(text.encode()) * 5 // 4


def stream_of(*parts: Any) -> bytes:
    return b"".join(recorded.data(each) for each in parts)


STARTED = {
    "type": "message_start",
    "message": {"model": "claude-sonnet-4-5", "usage": {"input_tokens": 50_000, "output_tokens": 1}},
}
BEGUN = {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.mark.parametrize(
    ("dialect", "surface", "sent"),
    [
        (Dialect.ANTHROPIC, Surface.MESSAGES, stream_of(STARTED, OVERLOADED)),
        (Dialect.ANTHROPIC, Surface.MESSAGES, recorded.named(STARTED) + b'event: error\ndata: {"message":"x"}\n\n'),
        (Dialect.ANTHROPIC, Surface.MESSAGES, stream_of(STARTED, {"type": "ping"}) + recorded.named(OVERLOADED, "\r\n")),
        (Dialect.OPENAI, Surface.CHAT, stream_of(BEGUN, chat_error())),
        (Dialect.OPENAI, Surface.CHAT, stream_of(BEGUN, {"object": "error", "message": "x", "code": 500})),
        (Dialect.GROQ, Surface.CHAT, stream_of(BEGUN, {"x_groq": {"error": "over_capacity"}})),
        (Dialect.OPENAI, Surface.RESPONSES, stream_of({"type": "response.created", "response": {"error": None}}, {"type": "error", "code": "server_error"})),
        (Dialect.OPENAI, Surface.RESPONSES, stream_of({"type": "response.failed", "response": {"usage": recorded.RESPONSES_USAGE}})),
        (Dialect.GEMINI, Surface.GENERATE, stream_of({"usageMetadata": recorded.GEMINI_USAGE}, {"error": {"code": 503}})),
        (Dialect.GEMINI, Surface.GENERATE, b'{\n  "error": {\n    "code": 500\n  }\n}\n'),
        (Dialect.OPENROUTER, Surface.CHAT, stream_of(BEGUN, {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]})),
        (Dialect.OPENROUTER, Surface.CHAT, stream_of({"choices": [{"error": {"code": 502}, "delta": {}}]})),
        (Dialect.OPENAI, Surface.CHAT, b": keep-alive\n\n: keep-alive\n\ndata: [DONE]\n\n"),
        (Dialect.OPENAI, Surface.CHAT, b""),
        (Dialect.OPENAI, Surface.CHAT, b"<html><body>502 Bad Gateway</body></html>"),
    ],
)  # fmt: skip
def test_a_stream_that_fails_before_any_content_costs_nothing(dialect: Dialect, surface: Surface, sent: bytes) -> None:
    stream = next(each for each in STREAMS if (each.dialect, each.surface) == (dialect, surface))
    for cut in (1, 7, len(sent) or 1):
        chunks = [sent[at : at + cut] for at in range(0, len(sent), cut)]
        assert cost(params(stream), read(params(stream), chunks)) == 0


@pytest.mark.parametrize("stream", STREAMS, ids=NAMES)
def test_an_error_after_content_costs_it_unless_the_provider_does_not_bill_it(stream: Stream) -> None:
    call = params(stream)
    whole = events(stream)
    sent = [*whole[:-2], recorded.data(stream.error)]
    if stream.dialect is Dialect.GEMINI:
        sent = [*whole[:-1], recorded.data(stream.error)]
    reading = read(call, sent)
    assert reading.streamed_bytes > 0
    if reading.is_complete:
        assert cost(call, reading) >= cost(call, reading._replace(has_failed=False))
    elif stream.dialect in {Dialect.ANTHROPIC, Dialect.GEMINI, Dialect.OPENROUTER}:
        assert cost(call, reading) == 0
    else:
        assert cost(call, reading) == price(call, 1_000, -(-reading.streamed_bytes // 4))


def test_a_cost_that_openrouter_reports_counts_even_if_it_failed() -> None:
    call = params(STREAMS[2])
    failed = stream_of(
        BEGUN, {**STREAMS[2].error, "usage": {"prompt_tokens": 5, "completion_tokens": 0, "cost": 0.001}}
    )
    assert cost(call, read(call, [failed])) == MILLION


def test_words_without_usage_cost_their_tokens_and_not_their_framing() -> None:
    call = params(STREAMS[0], tokens_in_likely=30)
    words = [recorded.chunk(choices=[{"index": 0, "delta": {"content": "word "}}]) for _ in range(100)]
    done = recorded.chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
    sent = [stream_of(*words, done), b"data: [DONE]\n\n"]
    assert cost(call, read(call, sent)) == 30 * 1_250 + 125 * 10_000
    # The same as a plain response, with usage of zero, or without its content type.
    plain = {"choices": [{"message": {"role": "assistant", "content": "word " * 100}, "finish_reason": "stop"}]}
    assert cost(call, read(call, [json.dumps(plain).encode()], "application/json")) == 30 * 1_250 + 125 * 10_000
    zero = {**plain, "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}}
    assert cost(call, read(call, [json.dumps(zero).encode()], "application/json")) == 30 * 1_250 + 125 * 10_000
    assert cost(call, read(call, sent, "text/plain")) == 30 * 1_250 + 125 * 10_000
    # An event of JSON alone, under the type of a stream.
    assert cost(call, read(call, [json.dumps(plain).encode()])) == 30 * 1_250 + 125 * 10_000


@pytest.mark.parametrize(
    ("surface", "dialect", "event", "size"),
    [
        (Surface.CHAT, Dialect.OPENROUTER, {"choices": [{"delta": {"reasoning": "abcd", "reasoning_details": [{"text": "abcd"}]}}]}, 4),
        (Surface.CHAT, Dialect.OPENAI, {"choices": [{"delta": {"reasoning": "abcd", "reasoning_content": "abcd"}}]}, 4),
        (Surface.CHAT, Dialect.OPENAI, {"choices": [{"message": {"content": "abcd", "annotations": [{"content": "page"}]}}]}, 4),
        (Surface.CHAT, Dialect.OPENAI, {"choices": [{"message": {"content": "ab![](data:image/png;base64," + "A" * 999 + ")"}}]}, 7),
        (Surface.CHAT, Dialect.OPENAI, {"choices": [{"message": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]}, 2),
        (Surface.MESSAGES, Dialect.ANTHROPIC, {"content": [{"type": "mcp_tool_result", "content": [{"type": "text", "text": "page"}]}, {"type": "text", "text": "abcd"}]}, 4),
        (Surface.MESSAGES, Dialect.ANTHROPIC, {"content": [{"type": "tool_use", "input": {}}, {"type": "tool_use", "input": {"é": 1}}]}, 8),
        (Surface.GENERATE, Dialect.GEMINI, {"candidates": [{"content": {"parts": [{"text": "abcd"}]}, "groundingMetadata": {"groundingSupports": [{"segment": {"text": "abcd"}}]}}]}, 4),
        (Surface.RESPONSES, Dialect.OPENAI, {"type": "response.audio.delta", "delta": "QUJD"}, 0),
        (Surface.RESPONSES, Dialect.OPENAI, {"type": "response.completed", "response": {"output": [{"content": [{"text": "abcd"}]}]}}, 4),
        (Surface.TRANSCRIPTION, Dialect.OPENAI, {"type": "transcript.text.delta", "delta": "abcd"}, 4),
    ],
)  # fmt: skip
def test_only_what_the_model_wrote_is_content(surface: Surface, dialect: Dialect, event: Any, size: int) -> None:
    call = CostParams(surface, dialect, model="m", is_streamed=True)
    assert read(call, [recorded.data(event)]).streamed_bytes == size


@pytest.mark.parametrize(
    ("stream", "reports", "usage"),
    [
        (4, [STARTED, {"type": "message_delta", "usage": {"input_tokens": 0, "output_tokens": 15}}], Usage(50_000, 15)),
        (0, [{"usage": {"prompt_tokens": 7, "completion_tokens": 9}}, {"usage": {"prompt_tokens": 0, "completion_tokens": 0}}], Usage(7, 9)),
        (0, [{"usage": {"prompt_tokens": 7, "completion_tokens": 9}}, {"usage": {"prompt_tokens": "7", "completion_tokens": -1}}], Usage(7, 9)),
        (5, [{"usageMetadata": {"promptTokenCount": 7, "candidatesTokenCount": 9}}, {"usageMetadata": {"promptTokenCount": 5, "candidatesTokenCount": 3}}], Usage(7, 9)),
        (3, [{"type": "response.in_progress", "response": {"usage": {"input_tokens": 7, "output_tokens": 9}}}, {"type": "response.completed", "response": {"usage": {"input_tokens": 1, "output_tokens": 0}}}], Usage(7, 9)),
        (2, [{"usage": {"prompt_tokens": 7, "completion_tokens": 9, "cost": 0.5}}, {"usage": {"prompt_tokens": 7, "completion_tokens": 9, "cost": 0}}], Usage(7, 9, cost_nanos=500 * MILLION)),
    ],
)  # fmt: skip
def test_counts_that_fall_are_not_believed(stream: int, reports: list[Any], usage: Usage) -> None:
    read_usage = read(params(STREAMS[stream]), [stream_of(*reports)]).usage
    assert read_usage is not None
    assert read_usage._replace(is_undivided=False, undivided_in=0) == usage


@pytest.mark.parametrize(
    ("ttl", "rate"),
    [('{"type":"ephemeral"}', 3_750), ('{"type":"ephemeral","ttl":"5m"}', 3_750), ('{"type":"ephemeral","ttl":"1h"}', 6_000),
     ('{"type":"ephemeral","\\u0074tl" : "1h"}', 6_000)],
)  # fmt: skip
def test_cache_writes_beyond_the_reported_parts_cost_the_requested_time(ttl: str, rate: int) -> None:
    said = '"said: \\"ttl\\": \\"1h\\""'
    body = f'{{"model":"claude-sonnet-4-5","max_tokens":9,"system":[{{"type":"text","text":{said},"cache_control":{ttl}}}],"messages":[]}}'
    call = read_request(Dialect.ANTHROPIC, "POST", "v1/messages", body=body.encode())
    counts = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 600}
    for split, parts in (
        ({"ephemeral_5m_input_tokens": 100, "ephemeral_1h_input_tokens": 200}, 100 * 3_750 + 200 * 6_000 + 300 * rate),
        ({}, 600 * rate),
        # More than the total: the parts count.
        ({"ephemeral_5m_input_tokens": 700, "ephemeral_1h_input_tokens": 0}, 700 * 3_750),
    ):
        reported = {"model": "claude-sonnet-4-5", "usage": {**counts, "cache_creation": split}}
        assert cost(call, read(call, [json.dumps(reported).encode()], "application/json")) == parts


def test_an_audio_prompt_costs_its_modalities() -> None:
    # gemini-2.5-flash: 300 text, 1 000 audio, cached 30 and 100, 2 500 out.
    parts = [
        {"text": "Listen"},
        {"inlineData": {"mimeType": "audio/wav", "data": base64.b64encode(b"x" * 999).decode()}},
    ]
    path = "v1beta/models/gemini-2.5-flash:generateContent"
    call = read_request(Dialect.GEMINI, "POST", path, body=json.dumps({"contents": [{"parts": parts}]}).encode())

    def charged(**counts: Any) -> int:
        body = {
            "candidates": [{"finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 110, "candidatesTokenCount": 0, **counts},
        }
        return cost(call, read(call, [json.dumps(body).encode()], "application/json"))

    def rows(**kinds: int) -> list[dict[str, Any]]:
        return [{"modality": kind, "tokenCount": count} for kind, count in kinds.items()]

    assert charged(promptTokensDetails=rows(TEXT=10, AUDIO=100)) == 10 * 300 + 100 * 1_000
    assert charged(promptTokensDetails=rows(TEXT=10, VIDEO=60, AUDIO=40)) == 70 * 300 + 40 * 1_000
    assert (
        charged(promptTokensDetails=rows(TEXT=10, AUDIO=100), candidatesTokenCount=5)
        == 10 * 300 + 100 * 1_000 + 5 * 2_500
    )
    assert (
        charged(
            promptTokensDetails=rows(TEXT=10, AUDIO=100), cachedContentTokenCount=50, cacheTokensDetails=rows(AUDIO=50)
        )
        == 10 * 300 + 50 * 1_000 + 50 * 100
    )
    # What a response does not assign may be audio.
    assert charged() == 110 * 1_000
    assert charged(promptTokensDetails=rows(TEXT=60)) == 60 * 300 + 50 * 1_000
    # Results of tools are text.
    assert charged(promptTokensDetails=rows(TEXT=10, AUDIO=100), toolUsePromptTokenCount=7) == 17 * 300 + 100 * 1_000
