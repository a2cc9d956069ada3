"""Answers: every byte reaches the caller, in any chunks, and the usage in it is found whatever happens."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.gateway.dialects.answers import MOST_PLAIN_BYTES, Answer, open_answer
from app.gateway.dialects.facts import CallFacts, Dialect, Surface
from app.gateway.dialects.framing import ArrayStream, EventStream
from app.gateway.dialects.usage import Reading, Usage
from tests.support import recorded_answers as recorded

SSE = "text/event-stream; charset=utf-8"
ENDS = st.sampled_from(["\n", "\r\n", "\r"])
WRITTEN = sum(len(word.encode()) for word in recorded.WORDS)


def facts(surface: Surface, dialect: Dialect = Dialect.OPENAI, **more: Any) -> CallFacts:
    return CallFacts(surface, dialect, model="m", **{"is_streamed": True, **more})


def pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({cut % (len(whole) + 1) for cut in cuts})
    return [whole[a:b] for a, b in zip([0, *at], [*at, len(whole)], strict=True)]


def read(answer: Answer, chunks: list[bytes], *, is_broken: bool = False) -> tuple[bytes, Reading]:
    passed = b"".join(answer.feed(chunk) for chunk in chunks)
    if not is_broken:
        passed += answer.flush()
    return passed, answer.finish(is_broken=is_broken)


STREAMS: list[tuple[CallFacts, Callable[[str], bytes], Usage]] = [
    (
        facts(Surface.CHAT),
        lambda end: recorded.chat_stream(end, asked=True),
        Usage(1200, 300, cache_read=1024, reasoning=128),
    ),
    (
        facts(Surface.CHAT, Dialect.GROQ),
        recorded.groq_stream,
        Usage(1200, 300, cache_read=1024, reasoning=128),
    ),
    (facts(Surface.CHAT, Dialect.OPENROUTER), recorded.openrouter_stream, Usage(194, 2, cost_nanos=950_000)),
    (
        facts(Surface.RESPONSES),
        recorded.responses_stream,
        Usage(1200, 300, cache_read=1024, reasoning=128, searches=1),
    ),
    (facts(Surface.MESSAGES, Dialect.ANTHROPIC), recorded.message_stream, Usage(1025, 15, cache_read=1000)),
    (facts(Surface.GENERATE, Dialect.GEMINI), recorded.gemini_stream, Usage(15, 106, reasoning=100)),
]
CUTS = st.lists(st.integers(min_value=0, max_value=10_000), max_size=60)


@given(st.sampled_from(STREAMS), ENDS, CUTS)
def test_any_chunking_of_a_stream_passes_the_same_bytes_and_tells_the_same_usage(
    stream: tuple[CallFacts, Callable[[str], bytes], Usage], end: str, cuts: list[int]
) -> None:
    call, write, usage = stream
    whole = write(end)
    passed, reading = read(open_answer(call, status=200, content_type=SSE), pieces(whole, cuts))
    assert passed == whole
    assert (reading.usage, reading.is_complete) == (usage, True)
    assert reading.streamed_bytes >= WRITTEN
    assert reading.bytes_received == len(whole)


@given(ENDS, CUTS)
def test_a_caller_who_did_not_ask_for_usage_gets_the_stream_of_one_who_did_not_ask(
    end: str, cuts: list[int]
) -> None:
    asked, unasked = recorded.chat_stream(end, asked=True), recorded.chat_stream(end, asked=False)
    answer = open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    passed, reading = read(answer, pieces(asked, cuts))
    assert passed == unasked
    assert reading.usage == Usage(1200, 300, cache_read=1024, reasoning=128)
    assert reading.streamed_bytes == WRITTEN


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_a_line_end_that_comes_in_two_pieces_is_taken_out_whole(end: str) -> None:
    asked, unasked = recorded.chat_stream(end, asked=True), recorded.chat_stream(end, asked=False)
    answer = open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    assert read(answer, [bytes([byte]) for byte in asked])[0] == unasked


@given(CUTS)
def test_the_array_that_gemini_streams_is_read_in_any_chunks(cuts: list[int]) -> None:
    whole = recorded.gemini_array()
    answer = open_answer(
        facts(Surface.GENERATE, Dialect.GEMINI), status=200, content_type="application/json; charset=UTF-8"
    )
    passed, reading = read(answer, pieces(whole, cuts))
    assert passed == whole
    assert (reading.usage, reading.model, reading.is_complete) == (
        Usage(15, 106, reasoning=100),
        "gemini-2.5-pro",
        True,
    )


@given(st.binary(max_size=2000), CUTS, st.booleans())
def test_a_stream_of_anything_passes_unchanged(whole: bytes, cuts: list[int], injected: bool) -> None:  # noqa: FBT001
    for surface in Surface:
        answer = open_answer(facts(surface, usage_injected=injected), status=200, content_type=SSE)
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
def test_no_answer_makes_reading_fail_or_tells_a_negative_count(
    told: Any,
    surface: Surface,
    dialect: Dialect,
    streamed: bool,  # noqa: FBT001
) -> None:
    call = facts(surface, dialect, usage_injected=streamed)
    body = recorded.data(told) if streamed else json.dumps(told).encode()
    _, reading = read(
        open_answer(call, status=200, content_type=SSE if streamed else "application/json"), [body]
    )
    if reading.usage is not None:
        counts = [getattr(reading.usage, name) or 0 for name in Usage.__slots__]
        assert all(isinstance(count, int) and 0 <= count <= 10**15 for count in counts)


PLAIN: list[tuple[CallFacts, Any, Usage]] = [
    (facts(Surface.CHAT), recorded.CHAT, Usage(1200, 300, cache_read=1024, reasoning=128)),
    (facts(Surface.EMBEDDINGS), recorded.EMBEDDINGS, Usage(8, 0)),
    (
        facts(Surface.MESSAGES, Dialect.ANTHROPIC),
        recorded.MESSAGE,
        Usage(
            7100, 400, cache_read=5000, cache_write=2000, cache_write_5m=1500, cache_write_1h=500, searches=2
        ),
    ),
    (
        facts(Surface.GENERATE, Dialect.GEMINI, is_streamed=False),
        recorded.GEMINI,
        Usage(15, 106, reasoning=100),
    ),
    (facts(Surface.CHAT, Dialect.OPENROUTER), recorded.OPENROUTER, Usage(194, 2, cost_nanos=950_000)),
    (facts(Surface.OPAQUE), recorded.CHAT, Usage(1200, 300, cache_read=1024, reasoning=128)),
    (facts(Surface.OPAQUE, Dialect.GEMINI), [recorded.GEMINI], Usage(15, 106, reasoning=100)),
    (
        facts(Surface.OPAQUE),
        {"text": "Hi", "usage": {"type": "duration", "seconds": 3.2}},
        Usage(audio_seconds=4),
    ),
    (
        facts(Surface.CHAT),
        {"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 17, "cost_in_usd_ticks": 25}},
        Usage(5, 12, cost_nanos=3),
    ),
    (
        facts(Surface.OPAQUE, Dialect.GEMINI),
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
    (facts(Surface.CHAT), {"usage": {"prompt_tokens": 5.0, "completion_tokens": 2.5}}, Usage(5, 0)),
    (
        facts(Surface.CHAT, Dialect.OPENROUTER),
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
def test_a_plain_answer_tells_its_usage_in_every_encoding(
    call: CallFacts, body: Any, usage: Usage, encoding: str | None
) -> None:
    text = json.dumps(body, indent=1).encode()
    raw = zlib.compressobj(wbits=-15)
    wire = {
        "gzip": gzip.compress(text),
        "deflate": zlib.compress(text),
        "raw": raw.compress(text) + raw.flush(),
    }
    content_encoding = "deflate" if encoding == "raw" else encoding
    answer = open_answer(call, status=200, content_type="application/json", content_encoding=content_encoding)
    sent = wire.get(encoding or "", text)
    passed, reading = read(answer, pieces(sent, list(range(0, 10_000, 7))))
    assert passed == sent
    assert (reading.usage, reading.is_complete) == (usage, True)


def test_a_compressed_stream_passes_as_it_came_and_is_read_all_the_same() -> None:
    whole = gzip.compress(recorded.chat_stream(asked=True))
    answer = open_answer(
        facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE, content_encoding="gzip"
    )
    passed, reading = read(answer, pieces(whole, list(range(0, 1000, 3))))
    assert passed == whole
    assert reading.usage is not None
    assert reading.usage.tokens_in == 1200


@pytest.mark.parametrize(
    ("encoding", "wire"),
    [
        ("br", b"\x0b\x02\x80abc\x03"),
        ("gzip", b"\x1f\x8b nonsense"),
        ("deflate", b"\xff\xff\xff"),
        ("gzip", gzip.compress(b"\0" * 300_000_000, 1)),
        ("gzip", gzip.compress(json.dumps(recorded.CHAT).encode())[:-20]),
    ],
)
def test_what_cannot_be_decoded_passes_and_leaves_the_usage_unknown(encoding: str, wire: bytes) -> None:
    answer = open_answer(
        facts(Surface.CHAT), status=200, content_type="application/json", content_encoding=encoding
    )
    passed, reading = read(answer, [wire])
    assert passed == wire
    assert reading.usage is None
    assert reading.bytes_received == len(wire)


def test_an_answer_too_large_to_hold_is_read_at_its_end() -> None:
    said = 'it said {"usage": {"prompt_tokens": 1}} ' * 10
    content = "x" * (MOST_PLAIN_BYTES + 1) + said
    odd = {'a"usage': {"prompt_tokens": 2}, "said": said}
    body = json.dumps(
        {"choices": [{"message": {"content": content}}], "usage": recorded.CHAT_USAGE, "odd": odd}
    )
    answer = open_answer(facts(Surface.CHAT), status=200, content_type="application/json")
    wire = body.encode()
    passed, reading = read(answer, [wire[at : at + 65536] for at in range(0, len(wire), 65536)])
    assert passed == wire
    assert reading.usage == Usage(1200, 300, cache_read=1024, reasoning=128)
    assert reading.is_complete


def test_a_nested_answer_is_not_decoded() -> None:
    answer = open_answer(facts(Surface.CHAT), status=200, content_type="application/json")
    assert read(answer, [b"[" * 100_000])[1].usage is None
    tail = b'{"usage":' + b'{"a":' * 100_000
    answer = open_answer(facts(Surface.CHAT), status=200, content_type="application/json")
    assert read(answer, [b" " * (MOST_PLAIN_BYTES + 1) + tail])[1].usage is None


def cut_after(whole: bytes, word: str) -> bytes:
    at = whole.index(word.encode()) + len(word.encode())
    return whole[: whole.index(b"\n\n", at) + 2]


def test_a_message_that_breaks_off_tells_its_input_and_what_was_written() -> None:
    whole = cut_after(recorded.message_stream(), recorded.WORDS[1])
    answer = open_answer(facts(Surface.MESSAGES, Dialect.ANTHROPIC), status=200, content_type=SSE)
    _, reading = read(answer, [whole], is_broken=True)
    assert reading.usage == Usage(1025, 1, cache_read=1000)
    assert not reading.is_complete
    assert reading.streamed_bytes == len((recorded.WORDS[0] + recorded.WORDS[1]).encode())


def test_a_chat_that_breaks_off_tells_what_was_written() -> None:
    whole = cut_after(recorded.chat_stream(asked=True), recorded.WORDS[0])
    answer = open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    _, reading = read(answer, [whole], is_broken=True)
    assert (reading.usage, reading.is_complete) == (None, False)
    assert reading.streamed_bytes == len(recorded.WORDS[0].encode())


def test_a_gemini_stream_that_breaks_off_has_running_counts_only() -> None:
    whole = cut_after(recorded.gemini_stream(), recorded.WORDS[0])
    answer = open_answer(facts(Surface.GENERATE, Dialect.GEMINI), status=200, content_type=SSE)
    _, reading = read(answer, [whole], is_broken=True)
    assert (reading.usage, reading.is_complete) == (Usage(15, 1), False)


def test_a_stream_that_breaks_off_after_its_count_is_complete() -> None:
    for call, write, usage in STREAMS:
        answer = open_answer(call, status=200, content_type=SSE)
        _, reading = read(answer, [write("\n")], is_broken=True)
        assert (reading.usage, reading.is_complete) == (usage, True)


def test_a_failure_inside_of_a_stream_is_seen() -> None:
    for frame in (
        recorded.named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}),
        recorded.data(
            {"error": {"code": 502, "message": "x"}, "choices": [{"delta": {}, "finish_reason": "error"}]}
        ),
    ):
        answer = open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
        passed, reading = read(answer, [frame])
        assert passed == frame
        assert reading.has_failed


def test_a_last_event_without_its_blank_line_is_read_and_passed() -> None:
    whole = recorded.data(recorded.chunk(choices=[], usage=recorded.CHAT_USAGE)).rstrip()
    _, reading = read(open_answer(facts(Surface.CHAT), status=200, content_type=SSE), [whole])
    assert reading.usage is not None
    partial = b'data: {"choices":[{"del'
    passed, _ = read(
        open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE), [partial]
    )
    assert passed == partial


def test_usage_that_comes_with_words_stays_in_the_stream() -> None:
    frame = recorded.data(recorded.chunk(choices=[{"delta": {"content": "x"}}], usage=recorded.CHAT_USAGE))
    answer = open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
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
def test_only_the_traces_of_asking_are_cut_out(came: bytes, goes: bytes) -> None:
    answer = open_answer(facts(Surface.CHAT, usage_injected=True), status=200, content_type=SSE)
    assert read(answer, [came])[0] == goes


@given(CUTS, ENDS)
def test_an_event_too_large_to_hold_passes_and_what_follows_is_read(cuts: list[int], end: str) -> None:
    stop = end.encode() * 2
    whole = b"data: " + b"x" * 500 + stop + b"data: after" + stop
    stream = EventStream(most_bytes=100)
    frames = [frame for piece in pieces(whole, [*cuts, 300]) for frame in stream.feed(piece)]
    frames += stream.flush()
    assert b"".join(frame.raw for frame in frames) == whole
    assert [frame.payload for frame in frames][-1] == b"after"
    assert len(b"".join(frame.payload or b"" for frame in frames)) < 600


@given(CUTS)
def test_an_object_too_large_to_hold_is_skipped_and_the_next_one_read(cuts: list[int]) -> None:
    whole = b'[{"a":"' + b'\\"}{' * 100 + b'"},{"b":{}}]'
    stream = ArrayStream(most_bytes=100)
    frames = [frame for piece in pieces(whole, cuts) for frame in stream.feed(piece)]
    assert [frame.payload for frame in frames] == [None, b'{"b":{}}']


def test_many_lines_of_data_are_one_event_and_a_mark_at_the_start_is_none() -> None:
    stream = EventStream()
    whole = b'\xef\xbb\xbfdata: {\ndata:"a":1\r\ndata:\rdata: }\r\n\r\n: data\n\nid: 1\ndata\n\n'
    assert [frame.payload for frame in stream.feed(whole)] == [b'{\n"a":1\n\n}', b"", b""]


def test_finishing_twice_changes_nothing() -> None:
    answer = open_answer(facts(Surface.CHAT), status=200, content_type="application/json")
    answer.feed(json.dumps(recorded.CHAT).encode())
    assert answer.finish() is answer.finish(is_broken=True)
