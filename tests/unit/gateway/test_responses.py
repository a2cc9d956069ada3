"""Responses: every byte is relayed, in any chunks, and their usage is read in all cases."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.dialects.request.cost_params import CostParams, Dialect, Surface
from app.gateway.dialects.response.response_reader import MAX_BUFFERED_BYTES, JsonArrayParser, ResponseReader, SseParser
from app.gateway.dialects.response.usage_readers import Usage, UsageReading
from tests.support import recorded_answers as recorded
from tests.support.response_readers import reader_of

SSE = "text/event-stream; charset=utf-8"
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WRITTEN = sum(len(word.encode()) for word in recorded.WORDS)


def params(surface: Surface, dialect: Dialect = Dialect.OPENAI, **more: Any) -> CostParams:
    return CostParams(surface, dialect, model="m", **{"is_streamed": True, **more})


def pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(whole) + 1) for cut in cuts})
    return [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]


def read(answer: ResponseReader, chunks: list[bytes], *, is_broken: bool = False) -> tuple[bytes, UsageReading]:
    passed = b"".join(answer.feed(chunk) for chunk in chunks)
    if not is_broken:
        passed += answer.flush()
    reading = answer.finish(is_broken=is_broken)
    # Whether the tokens are divided by kind matters for their price only (test_pricing.py).
    usage = None if reading.usage is None else reading.usage._replace(is_undivided=False, undivided_in=0)
    return passed, reading._replace(usage=usage)


STREAMS: list[tuple[CostParams, Callable[[str], bytes], Usage]] = [
    (
        params(Surface.CHAT),
        lambda end: recorded.chat_stream(end, asked=True),
        Usage(1200, 300, cache_read=1024, reasoning=128),
    ),
    (params(Surface.CHAT, Dialect.GROQ), recorded.groq_stream, Usage(1200, 300, cache_read=1024, reasoning=128)),
    (params(Surface.CHAT, Dialect.OPENROUTER), recorded.openrouter_stream, Usage(194, 2, cost_nanos=950_000)),
    (
        params(Surface.RESPONSES),
        recorded.responses_stream,
        Usage(1200, 300, cache_read=1024, reasoning=128, searches=1),
    ),
    (params(Surface.MESSAGES, Dialect.ANTHROPIC), recorded.message_stream, Usage(1025, 15, cache_read=1000)),
    (params(Surface.GENERATE, Dialect.GEMINI), recorded.gemini_stream, Usage(15, 106, reasoning=100)),
]
CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=60)


@given(st.sampled_from(STREAMS), ENDS, CUTS)
def test_chunking_changes_neither_bytes_nor_usage(
    stream: tuple[CostParams, Callable[[str], bytes], Usage], end: str, cuts: list[int]
) -> None:
    call, write, usage = stream
    whole = write(end)
    passed, reading = read(reader_of(call, status=200, content_type=SSE), pieces(whole, cuts))
    assert passed == whole
    assert (reading.usage, reading.is_complete) == (usage, True)
    assert reading.streamed_bytes >= WRITTEN
    assert reading.bytes_received == len(whole)


@given(ENDS, CUTS)
def test_injected_usage_is_removed_from_the_stream(end: str, cuts: list[int]) -> None:
    asked, unasked = recorded.chat_stream(end, asked=True), recorded.chat_stream(end, asked=False)
    answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    passed, reading = read(answer, pieces(asked, cuts))
    assert passed == unasked
    assert reading.usage == Usage(1200, 300, cache_read=1024, reasoning=128)
    assert reading.streamed_bytes == WRITTEN


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_end_split_over_two_chunks_is_removed_whole(end: str) -> None:
    asked, unasked = recorded.chat_stream(end, asked=True), recorded.chat_stream(end, asked=False)
    answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    assert read(answer, [bytes([byte]) for byte in asked])[0] == unasked


@given(CUTS)
def test_a_gemini_array_is_read_in_any_chunks(cuts: list[int]) -> None:
    whole = recorded.gemini_array()
    answer = reader_of(
        params(Surface.GENERATE, Dialect.GEMINI), status=200, content_type="application/json; charset=UTF-8"
    )
    passed, reading = read(answer, pieces(whole, cuts))
    assert passed == whole
    assert (reading.usage, reading.model, reading.is_complete) == (
        Usage(15, 106, reasoning=100),
        "gemini-2.5-pro",
        True,
    )


@given(st.binary(max_size=2000), CUTS, st.booleans())
def test_any_stream_is_relayed_unchanged(whole: bytes, cuts: list[int], injected: bool) -> None:  # noqa: FBT001
    for surface in Surface:
        answer = reader_of(params(surface, usage_injected=injected), status=200, content_type=SSE)
        passed, reading = read(answer, pieces(whole, cuts))
        assert passed == whole
        assert reading.usage is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from(
            [
                "usage", "usageMetadata", "choices", "delta", "content", "message", "response", "type", "model", "cost",
                "prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "total_tokens", "error",
                "prompt_tokens_details", "cached_tokens", "promptTokenCount", "promptTokensDetails", "modality",
                "candidates", "groundingMetadata", "webSearchQueries", "x_groq", "output", "cache_creation", "seconds",
                "tokenCount", "args", "service_tier", "is_byok", "cost_details", "server_tool_use",
            ]
        ),
        inner,
        max_size=6,
    ),
    max_leaves=25,
)  # fmt: skip


@given(JSON, st.sampled_from(list(Surface)), st.sampled_from(list(Dialect)), st.booleans())
def test_no_response_makes_reading_fail_or_yields_a_negative_count(
    reported: Any,
    surface: Surface,
    dialect: Dialect,
    streamed: bool,  # noqa: FBT001
) -> None:
    call = params(surface, dialect, usage_injected=streamed)
    body = recorded.data(reported) if streamed else json.dumps(reported).encode()
    _, reading = read(reader_of(call, status=200, content_type=SSE if streamed else "application/json"), [body])
    if reading.usage is not None:
        counts = [getattr(reading.usage, name) or 0 for name in Usage._fields]
        assert all(isinstance(count, int) and 0 <= count <= 10**15 for count in counts)


PLAIN: list[tuple[CostParams, Any, Usage]] = [
    (params(Surface.CHAT), recorded.CHAT, Usage(1200, 300, cache_read=1024, reasoning=128)),
    (params(Surface.EMBEDDINGS), recorded.EMBEDDINGS, Usage(8, 0)),
    (
        params(Surface.MESSAGES, Dialect.ANTHROPIC),
        recorded.MESSAGE,
        Usage(7100, 400, cache_read=5000, cache_write=2000, cache_write_5m=1500, cache_write_1h=500, searches=2),
    ),
    (params(Surface.GENERATE, Dialect.GEMINI, is_streamed=False), recorded.GEMINI, Usage(15, 106, reasoning=100)),
    (params(Surface.CHAT, Dialect.OPENROUTER), recorded.OPENROUTER, Usage(194, 2, cost_nanos=950_000)),
    (params(Surface.OPAQUE), recorded.CHAT, Usage(1200, 300, cache_read=1024, reasoning=128)),
    (params(Surface.OPAQUE, Dialect.GEMINI), [recorded.GEMINI], Usage(15, 106, reasoning=100)),
    (params(Surface.OPAQUE), {"text": "Hi", "usage": {"type": "duration", "seconds": 3.2}}, Usage(audio_seconds=4)),
    (
        params(Surface.CHAT),
        {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 17, "cost_in_usd_ticks": 25}},
        Usage(5, 12, cost_nanos=3),
    ),
    (
        params(Surface.OPAQUE, Dialect.GEMINI),
        {
            "model": "gemini-2.5-pro",
            "usage": {
                "total_input_tokens": 15,
                "total_output_tokens": 6,
                "total_thought_tokens": 100,
                "total_cached_tokens": 4,
                "total_tokens": 121,
            },
        },
        Usage(15, 106, cache_read=4, reasoning=100),
    ),
    (params(Surface.CHAT), {"usage": {"prompt_tokens": 5.0, "completion_tokens": 2.5}}, Usage(5, 0)),
    (
        params(Surface.CHAT, Dialect.OPENROUTER),
        {
            "usage": {
                "prompt_tokens": 1,
                "completion_tokens": 1,
                "cost": 0.0000000001,
                "is_byok": True,
                "cost_details": {"upstream_inference_cost": 0.5},
            }
        },
        Usage(1, 1, cost_nanos=500_000_001),
    ),
]


@pytest.mark.parametrize("encoding", [None, "identity", "gzip", "deflate", "raw"])
@pytest.mark.parametrize(("call", "body", "usage"), PLAIN)
def test_usage_is_read_in_every_content_encoding(
    call: CostParams, body: Any, usage: Usage, encoding: str | None
) -> None:
    text = json.dumps(body, indent=1).encode()
    raw = zlib.compressobj(wbits=-15)
    wire = {"gzip": gzip.compress(text), "deflate": zlib.compress(text), "raw": raw.compress(text) + raw.flush()}
    content_encoding = "deflate" if encoding == "raw" else encoding
    answer = reader_of(call, status=200, content_type="application/json", content_encoding=content_encoding)
    sent = wire.get(encoding or "", text)
    passed, reading = read(answer, pieces(sent, list(range(0, 10_000, 7))))
    assert passed == sent
    assert (reading.usage, reading.is_complete) == (usage, True)


def test_a_compressed_stream_is_relayed_unchanged_and_read() -> None:
    whole = gzip.compress(recorded.chat_stream(asked=True))
    answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE, content_encoding="gzip")
    passed, reading = read(answer, pieces(whole, list(range(0, 1000, 3))))
    assert passed == whole
    assert reading.usage is not None
    assert reading.usage.tokens_in == 1200


@pytest.mark.parametrize(
    ("encoding", "make"),
    [
        ("br", lambda: b"\x0b\x02\x80abc\x03"),
        ("gzip", lambda: b"\x1f\x8b nonsense"),
        ("deflate", lambda: b"\xff\xff\xff"),
        # Made in the test: each process collects it.
        ("gzip", lambda: gzip.compress(b"\0" * 300_000_000, 1)),
        ("gzip", lambda: gzip.compress(json.dumps(recorded.CHAT).encode())[:-20]),
    ],
    ids=["brotli", "nonsense", "deflate", "three hundred megabytes", "cut off"],
)
def test_an_undecodable_response_is_relayed_and_its_usage_unknown(encoding: str, make: Callable[[], bytes]) -> None:
    wire = make()
    answer = reader_of(params(Surface.CHAT), status=200, content_type="application/json", content_encoding=encoding)
    passed, reading = read(answer, [wire])
    assert passed == wire
    assert reading.usage is None
    assert reading.bytes_received == len(wire)


def test_the_end_of_a_large_response_is_read() -> None:
    said = 'it said {"usage": {"prompt_tokens": 1}} ' * 10
    content = "x" * (MAX_BUFFERED_BYTES + 1) + said
    odd = {'a"usage': {"prompt_tokens": 2}, "said": said}
    body = json.dumps({"choices": [{"message": {"content": content}}], "usage": recorded.CHAT_USAGE, "odd": odd})
    answer = reader_of(params(Surface.CHAT), status=200, content_type="application/json")
    wire = body.encode()
    passed, reading = read(answer, [wire[at : at + 65536] for at in range(0, len(wire), 65536)])
    assert passed == wire
    assert reading.usage == Usage(1200, 300, cache_read=1024, reasoning=128)
    assert reading.is_complete


@pytest.mark.parametrize("order", ["usage tool_usage tools", "tool_usage tools usage", "tools usage tool_usage"])
def test_client_tools_cannot_forge_the_end_of_a_large_response(order: str) -> None:
    # Responses repeat the tools of the request; their schemas may use any names.
    forged = {"usage": {"input_tokens": 0, "output_tokens": 0}, "tool_usage": {"web_search": {"num_requests": 0}}}
    fields = {
        "usage": {"input_tokens": 1200, "output_tokens": 300},
        "tool_usage": {"web_search": {"num_requests": 7}},
        "tools": [{"type": "function", "parameters": forged}],
    }
    body = json.dumps({"output": "x" * MAX_BUFFERED_BYTES, **{name: fields[name] for name in order.split()}})
    answer = reader_of(params(Surface.RESPONSES), status=200, content_type="application/json")
    assert read(answer, [body.encode()])[1].usage == Usage(1200, 300, searches=7)


def test_a_deeply_nested_response_is_not_parsed() -> None:
    answer = reader_of(params(Surface.CHAT), status=200, content_type="application/json")
    assert read(answer, [b"[" * 100_000])[1].usage is None
    tail = b'{"usage":' + b'{"a":' * 100_000
    answer = reader_of(params(Surface.CHAT), status=200, content_type="application/json")
    assert read(answer, [b" " * (MAX_BUFFERED_BYTES + 1) + tail])[1].usage is None


def cut_after(whole: bytes, word: str) -> bytes:
    at = whole.index(word.encode()) + len(word.encode())
    return whole[: whole.index(b"\n\n", at) + 2]


def test_an_interrupted_message_has_its_input_and_content() -> None:
    whole = cut_after(recorded.message_stream(), recorded.WORDS[1])
    answer = reader_of(params(Surface.MESSAGES, Dialect.ANTHROPIC), status=200, content_type=SSE)
    _, reading = read(answer, [whole], is_broken=True)
    assert reading.usage == Usage(1025, 1, cache_read=1000)
    assert not reading.is_complete
    assert reading.streamed_bytes == len((recorded.WORDS[0] + recorded.WORDS[1]).encode())


def test_an_interrupted_chat_has_its_content() -> None:
    whole = cut_after(recorded.chat_stream(asked=True), recorded.WORDS[0])
    answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    _, reading = read(answer, [whole], is_broken=True)
    assert (reading.usage, reading.is_complete) == (None, False)
    assert reading.streamed_bytes == len(recorded.WORDS[0].encode())


def test_an_interrupted_gemini_stream_has_only_running_counts() -> None:
    whole = cut_after(recorded.gemini_stream(), recorded.WORDS[0])
    answer = reader_of(params(Surface.GENERATE, Dialect.GEMINI), status=200, content_type=SSE)
    _, reading = read(answer, [whole], is_broken=True)
    assert (reading.usage, reading.is_complete) == (Usage(15, 1), False)


def test_a_stream_interrupted_after_its_count_is_complete() -> None:
    for call, write, usage in STREAMS:
        answer = reader_of(call, status=200, content_type=SSE)
        _, reading = read(answer, [write("\n")], is_broken=True)
        assert (reading.usage, reading.is_complete) == (usage, True)


def test_an_error_inside_a_stream_is_detected() -> None:
    for frame in (
        recorded.named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        recorded.data({"error": {"code": 502, "message": "x"}, "choices": [{"delta": {}, "finish_reason": "error"}]}),
    ):
        answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
        passed, reading = read(answer, [frame])
        assert passed == frame
        assert reading.has_failed


def test_a_last_event_without_its_blank_line_is_read_and_relayed() -> None:
    whole = recorded.data(recorded.chunk(choices=[], usage=recorded.CHAT_USAGE)).rstrip()
    _, reading = read(reader_of(params(Surface.CHAT), status=200, content_type=SSE), [whole])
    assert reading.usage is not None
    partial = b'data: {"choices":[{"del'
    passed, _ = read(reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE), [partial])
    assert passed == partial


def test_usage_next_to_content_stays_in_the_stream() -> None:
    frame = recorded.data(recorded.chunk(choices=[{"delta": {"content": "x"}}], usage=recorded.CHAT_USAGE))
    answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    assert read(answer, [frame])[0] == frame


@pytest.mark.parametrize(
    ("came", "goes"),
    [
        (b'data: {"usage":null,"id":1}\n\n', b'data: {"id":1}\n\n'),
        (b'data: {"id":1, "usage" : null , "x":2}\n\n', b'data: {"id":1 , "x":2}\n\n'),
        (b'data: {"usage":null}\n\n', b"data: {}\n\n"),
        (b'data: {"a":{"usage":null},"usage":null}\n\n', b'data: {"a":{"usage":null}}\n\n'),
        (b'data: {"a":"\\"usage\\":null","usage":null}\n\n', b'data: {"a":"\\"usage\\":null"}\n\n'),
        (b'data: {"id":1,\ndata: "usage":null}\n\n', b'data: {"id":1,\ndata: "usage":null}\n\n'),
        (b"\n\ndata: {}\n\n", b"\n\ndata: {}\n\n"),
        (b'\n\r\ndata:{"choices":[],"usage":{}}\n\n', b"\n\r\n"),
    ],
)
def test_only_injected_usage_is_removed(came: bytes, goes: bytes) -> None:
    answer = reader_of(params(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    assert read(answer, [came])[0] == goes


@given(CUTS, ENDS)
def test_an_oversized_event_is_relayed_and_the_next_is_read(cuts: list[int], end: str) -> None:
    stop = end.encode() * 2
    whole = b"data: " + b"x" * 500 + stop + b"data: after" + stop
    stream = SseParser(max_bytes=100)
    frames = [frame for piece in pieces(whole, [*cuts, 300]) for frame in stream.feed(piece)]
    frames += stream.flush()
    assert b"".join(frame.raw for frame in frames) == whole
    assert [frame.payload for frame in frames][-1] == b"after"
    assert len(b"".join(frame.payload or b"" for frame in frames)) < 600


@given(CUTS)
def test_an_oversized_object_is_abridged_and_the_next_is_read(cuts: list[int]) -> None:
    whole = b'[{"a":"' + b'\\"}{' * 100 + b'"},{"b":{}}]'
    stream = JsonArrayParser(max_bytes=100)
    frames = [frame for piece in pieces(whole, cuts) for frame in stream.feed(piece)]
    left = [frame.payload if frame.abridged is None else frame.abridged.text() for frame in frames]
    assert left == [b'{"a":"' + b'\\"}{' * 100 + b'"}', b'{"b":{}}']


def test_a_gemini_array_that_broke_off_has_the_counts_before() -> None:
    whole = recorded.gemini_array()
    counts = Usage(15, 106, reasoning=100)
    for end in (b',\r\n{"candidates": [{"con', b"\n"):
        call = params(Surface.GENERATE, Dialect.GEMINI)
        answer = reader_of(call, status=200, content_type="application/json")
        _, reading = read(answer, [whole.rstrip().removesuffix(b"]") + end], is_broken=True)
        assert reading.usage == counts
    answer = reader_of(call, status=200, content_type="application/json")
    _, reading = read(answer, [whole[:20]], is_broken=True)
    assert (reading.usage, reading.bytes_unread, reading.is_blank) == (None, 0, True)


def test_a_gemini_array_of_many_megabytes_keeps_its_counts() -> None:
    """Its events have logarithms of probabilities, which are short strings: none of them is left out by its size."""
    words = [{"token": "word", "logProbability": -0.25} for _ in range(20_000)]
    event = {"candidates": [{"content": {"parts": [{"text": "word "}]}, "logprobsResult": {"topCandidates": words}}]}
    large = json.dumps(event).encode() + b",\n"
    count = MAX_BUFFERED_BYTES // len(large) + 1
    whole = b"[" + large * count + recorded.gemini_array().lstrip()[1:]
    for is_broken in (False, True):
        call = params(Surface.GENERATE, Dialect.GEMINI)
        answer = reader_of(call, status=200, content_type="application/json")
        _, reading = read(answer, [whole.rstrip().removesuffix(b"]") if is_broken else whole], is_broken=is_broken)
        assert (reading.usage, reading.bytes_unread) == (Usage(15, 106, reasoning=100), 0)
        assert reading.streamed_bytes < 10_000


def test_data_lines_form_one_event_and_a_byte_order_mark_is_ignored() -> None:
    stream = SseParser()
    whole = b'\xef\xbb\xbfdata: {\ndata:"a":1\r\ndata:\rdata: }\r\n\r\n: data\n\nid: 1\ndata\n\n'
    assert [frame.payload for frame in stream.feed(whole)] == [b'{\n"a":1\n\n}', b"", b""]


def test_finishing_twice_changes_nothing() -> None:
    answer = reader_of(params(Surface.CHAT), status=200, content_type="application/json")
    answer.feed(json.dumps(recorded.CHAT).encode())
    assert answer.finish() is answer.finish(is_broken=True)
