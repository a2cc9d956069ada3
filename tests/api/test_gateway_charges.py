"""The table of charges: the cost of each outcome of a call, and that nothing stays held after it."""

from __future__ import annotations

import gzip
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from app.observability import counters
from tests.support.counted import growth_of
from tests.support.gateway import SEARCH_NANOS, Stage, gateway_stage
from tests.support.loopback_http import unused_url
from tests.support.provider_rows import FORM, form_of
from tests.support.recordings import wav
from tests.support.upstreams import Behaviour, Exchange, chat_answer, chat_chunks
from tests.support.waiting import wait_until

# gpt-5 at 1.25 and 10 USD a million: 1000 in and 500 out.
CHAT_NANOS = 1_000 * 1_250 + 500 * 10_000


@pytest.fixture
def stage(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, each_database_url, upstream_read_timeout_seconds="60") as made:
        yield made


def reset(exchange: Exchange) -> None:
    exchange.reset()


def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


def never_respond(exchange: Exchange) -> None:
    exchange.await_hang_up()


def half_a_head(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: appl")
    exchange.hang_up()


def no_http(exchange: Exchange) -> None:
    exchange.send(b"SSH-2.0-OpenSSH_9.9\r\n")
    exchange.hang_up()


def send_less_than_declared(exchange: Exchange) -> None:
    body = json.dumps(chat_answer()).encode()
    exchange.head(200, ("Content-Type", "application/json"), ("Content-Length", len(body) + 10))
    exchange.send(body)
    exchange.hang_up()


def half_a_chunk(exchange: Exchange) -> None:
    exchange.head(200, ("Content-Type", "application/json"), ("Transfer-Encoding", "chunked"))
    exchange.send(b'400\r\n{"id": "chatcmpl')
    exchange.hang_up()


def answering(status: int, *headers: tuple[str, object]) -> Behaviour:
    return lambda exchange: exchange.json({"error": {"message": "no"}}, status, *headers)


def compressed(exchange: Exchange) -> None:
    body = gzip.compress(json.dumps(chat_answer()).encode())
    exchange.answer(body, 200, ("Content-Type", "application/json"), ("Content-Encoding", "gzip"))


def empty(exchange: Exchange) -> None:
    exchange.head(204)


def html(exchange: Exchange) -> None:
    page = b"<!DOCTYPE html><html><body>Just a moment...</body></html>"
    exchange.answer(page, 200, ("Content-Type", "text/html"))


def no_bytes(exchange: Exchange) -> None:
    exchange.answer(b"", 200, ("Content-Type", "application/json"))


def rate_limit_in_200(exchange: Exchange) -> None:
    exchange.json({"jsonrpc": "2.0", "id": 1, "error": {"code": 429, "message": "Too many requests"}})


def redirect(exchange: Exchange) -> None:
    exchange.answer(b"", 302, ("Location", "https://elsewhere.example/"))


def with_usage(exchange: Exchange) -> None:
    exchange.json(chat_answer())


@dataclass(frozen=True, slots=True)
class Case:
    """An upstream's behaviour, the status that the client gets, and the cost of a chat and of a search."""

    name: str
    behave: Behaviour
    status: int
    chat_nanos: int
    search_nanos: int

    def __str__(self) -> str:
        return self.name


TABLE = [
    Case("it responds with usage", with_usage, 200, CHAT_NANOS, SEARCH_NANOS),
    Case("it resets the connection", reset, 502, 0, 0),
    Case("it closes the connection", hang_up, 502, 0, 0),
    Case("its head breaks off", half_a_head, 502, 0, 0),
    Case("it sends no HTTP", no_http, 502, 0, 0),
    Case("it promises more than it sends", send_less_than_declared, 502, 0, 0),
    Case("its body breaks off", half_a_chunk, 502, 0, 0),
    Case("it refuses the request", answering(400), 400, 0, SEARCH_NANOS),
    Case("it finds nothing", answering(404), 404, 0, SEARCH_NANOS),
    Case("it refuses the credential", answering(401), 502, 0, 0),
    Case("the operator's account is empty", answering(402), 502, 0, 0),
    Case("it forbids access", answering(403), 502, 0, 0),
    Case("it limits the rate", answering(429, ("Retry-After", 7)), 429, 0, 0),
    Case("it fails", answering(500), 500, 0, 0),
    Case("it is overloaded", answering(529), 529, 0, 0),
    Case("it compresses without being asked", compressed, 200, CHAT_NANOS, SEARCH_NANOS),
    Case("it redirects", redirect, 302, 0, SEARCH_NANOS),
    Case("it sends no body", empty, 204, 0, SEARCH_NANOS),
    Case("it sends an empty body", no_bytes, 200, 0, SEARCH_NANOS),
    Case("it sends a page in HTML", html, 200, 0, SEARCH_NANOS),
    Case("it limits the rate in a success", rate_limit_in_200, 200, 0, 0),
]


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_calls_of_unknown_cost_and_of_fixed_price_are_charged_by_their_outcome(stage: Stage, case: Case) -> None:
    stage.behave(case.behave)
    revenue = growth_of(counters.REVENUE_USD)
    assert stage.chat().status_code == case.status
    stage.assert_all_agree()
    assert stage.spent_nanos() == case.chat_nanos
    assert len(stage.usage()) == bool(case.chat_nanos)
    assert stage.search().status_code == case.status
    stage.assert_all_agree()
    assert stage.spent_nanos() == case.chat_nanos + case.search_nanos
    assert len(stage.usage()) == bool(case.chat_nanos) + bool(case.search_nanos)
    assert len(stage.upstream.asked) == 2
    assert revenue() == pytest.approx((case.chat_nanos + case.search_nanos) / 1e9)


def test_an_upstream_that_never_responds_costs_nothing(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, upstream_read_timeout_seconds="0.2") as stage:
        stage.behave(never_respond)
        for answer in (stage.chat(), stage.chat(stream=True), stage.search()):
            assert (answer.status_code, answer.get_json()["code"]) == (504, "UPSTREAM_TIMEOUT")
        assert stage.spent_nanos() == 0
        stage.assert_all_agree()


def test_rate_limit_headers_of_the_upstream_reach_the_client(stage: Stage) -> None:
    stage.behave(answering(429, ("Retry-After", 7), ("x-ratelimit-remaining-requests", 0)))
    answer = stage.chat()
    assert (answer.headers["Retry-After"], answer.headers["x-ratelimit-remaining-requests"]) == ("7", "0")
    assert answer.get_json() == {"error": {"message": "no"}}


def test_an_upstream_that_cannot_be_reached_costs_nothing(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    gone = unused_url()
    with gateway_stage(build_app, sqlite_url, openai_base_url=gone, brave_base_url=gone) as stage:
        for answer in (stage.chat(), stage.chat(stream=True), stage.search()):
            assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR")
            assert gone not in answer.text
        assert stage.spent_nanos() == 0
        stage.assert_all_agree()


def test_a_compressed_response_reaches_the_client_byte_for_byte(stage: Stage) -> None:
    stage.behave(compressed)
    answer = stage.chat()
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.data)) == chat_answer()


def test_a_plain_response_is_settled_before_it_is_sent(stage: Stage) -> None:
    stage.behave(with_usage)
    answer = stage.chat()
    assert answer.headers["X-Cost-Usd"] == "0.00625"
    assert answer.headers["X-Credits-Remaining"] == "9.99375"
    assert stage.agent.get("/v1/balance").get_json() == {
        "credits_usd": 9.99375,
        "total_spent": 0.00625,
        "owed_usd": 0.0,
    }
    entry = stage.usage()[0]
    assert (entry["provider"], entry["model"], entry["tokens_in"], entry["tokens_out"]) == (
        "openai", "gpt-5", 1000, 500,
    )  # fmt: skip


def test_a_call_without_a_model_is_logged_by_its_path_without_ids(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({}))
    assert stage.call("/v1/gateway/coingecko/coins/bitcoin/history?date=x").status_code == 200
    assert [(entry["provider"], entry["model"]) for entry in stage.usage()] == [("coingecko", "coins/bitcoin")]


def test_a_stream_is_charged_what_it_reports_at_its_end(stage: Stage) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        for frame in chat_chunks("Hel", "lo"):
            exchange.chunk(frame)
        exchange.end_stream()

    stage.behave(stream)
    answer = stage.chat(stream=True)
    assert answer.status_code == 200
    assert answer.data.endswith(b"data: [DONE]\n\n")
    assert b"prompt_tokens" not in answer.data
    assert stage.upstream.asked[0].json()["stream_options"] == {"include_usage": True}
    stage.assert_all_agree()
    assert stage.spent_nanos() == CHAT_NANOS


def test_a_stream_cut_by_the_upstream_is_charged_for_what_was_relayed(stage: Stage) -> None:
    def half(exchange: Exchange) -> None:
        exchange.start_stream()
        for frame in chat_chunks(*["word "] * 100)[:100]:
            exchange.chunk(frame)
        exchange.hang_up()

    stage.behave(half)
    pieces: list[bytes] = []
    with stage.stream() as arriving, pytest.raises(ConnectionResetError):
        pieces.extend(arriving)
    assert b"word" in b"".join(pieces)
    stage.assert_all_agree()
    # 100 words of five letters are about 125 tokens; the input is some dozens more.
    assert 125 * 10_000 <= stage.spent_nanos() < 200 * 10_000
    assert stage.usage()[0]["tokens_out"] >= 100


def test_an_endless_stream_is_cut_at_the_maximum_duration(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    pace = threading.Event()

    def dripping(exchange: Exchange) -> None:
        exchange.start_stream()
        with suppress(OSError):
            while True:
                exchange.chunk(chat_chunks("drop")[0])
                pace.wait(0.05)
        exchange.hang_up()

    with gateway_stage(build_app, sqlite_url, stream_max_seconds="1") as stage:
        stage.behave(dripping)
        pieces: list[bytes] = []

        def is_cut_after_a_chunk() -> bool:
            with stage.stream() as arriving, pytest.raises(ConnectionResetError):
                pieces.extend(arriving)
            return b"drop" in b"".join(pieces)

        # On a busy machine the first chunk may take that second.
        wait_until(is_cut_after_a_chunk, what="a stream that began in time")
        stage.assert_all_agree()
        assert stage.open_holds() == 0
        assert stage.spent_nanos() > 0


def test_a_stream_that_its_client_leaves_is_charged_and_closed_upstream(stage: Stage) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.start_stream()
        for frame in chat_chunks(*["word "] * 10)[:10]:
            exchange.chunk(frame)
        exchange.await_hang_up()

    stage.behave(endless)
    with stage.stream() as arriving:
        assert b"word" in next(arriving)
    stage.upstream.await_hang_ups()
    stage.assert_all_agree()
    assert 0 < stage.spent_nanos() < 100 * 10_000


def test_a_client_that_leaves_before_the_first_byte_pays_for_the_input_only(
    build_app: Callable[..., Flask], each_database_url: str
) -> None:
    def slow(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.await_hang_up()

    # The stream is read on until its maximum here, and for ten seconds in the test above.
    with gateway_stage(build_app, each_database_url, stream_max_seconds="4") as stage:
        stage.behave(slow)
        with stage.stream():
            assert stage.open_holds() == 1
        stage.upstream.await_hang_ups()
        stage.assert_all_agree()
        assert 0 < stage.spent_nanos() < 100 * 1_250
        assert stage.usage()[0]["tokens_out"] == 0


def test_a_head_request_carries_no_body_and_holds_nothing(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.answer(b"x" * 500, 200, ("Content-Type", "text/html")))
    answer = stage.search(method="HEAD")
    assert (answer.status_code, answer.data, answer.headers["Content-Length"]) == (200, b"", "500")
    assert stage.upstream.asked[0].method == "HEAD"
    stage.assert_all_agree()


def test_a_free_call_costs_nothing(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({"data": []}))
    assert stage.call("/v1/gateway/openai/models").headers["X-Cost-Usd"] == "0"
    stage.assert_all_agree()
    assert stage.spent_nanos() == 0


def test_a_cost_reported_by_the_upstream_takes_precedence_over_price_tables(stage: Stage) -> None:
    reported = {**chat_answer("openai/gpt-5"), "usage": {**chat_answer()["usage"], "cost": 0.00095}}
    stage.behave(lambda exchange: exchange.json(reported))
    body = {"model": "openai/gpt-5", "messages": [], "max_tokens": 10}
    answer = stage.call("/v1/gateway/openrouter/chat/completions", "POST", json=body)
    assert answer.headers["X-Cost-Usd"] == "0.00095"
    assert stage.spent_nanos() == 950_000
    stage.assert_all_agree()


def test_no_call_costs_more_than_the_maximum_of_one_call(stage: Stage) -> None:
    lie = {**chat_answer("openai/gpt-5"), "usage": {**chat_answer()["usage"], "cost": 7.5}}
    stage.behave(lambda exchange: exchange.json(lie))
    body = {"model": "openai/gpt-5", "messages": [], "max_tokens": 10}
    answer = stage.call("/v1/gateway/openrouter/chat/completions", "POST", json=body)
    assert answer.headers["X-Cost-Usd"] == "5"
    stage.assert_all_agree()
    unpaid, revenue = growth_of(counters.UNPAID_USD), growth_of(counters.REVENUE_USD)
    left = float(answer.headers["X-Credits-Remaining"])
    assert left < 5 or stage.search().status_code == 200
    answer = stage.call("/v1/gateway/openrouter/chat/completions", "POST", json=body)
    assert answer.headers["X-Credits-Remaining"] == "0"
    assert revenue() == pytest.approx(left)
    assert 0 < unpaid() == pytest.approx(5 - float(answer.headers["X-Cost-Usd"]))


def test_a_client_that_leaves_before_the_usage_pays_what_it_reports(stage: Stage) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        frames = chat_chunks("Hel", "lo")
        exchange.chunk(frames[0])
        exchange.wait_for("client gone")
        for frame in frames[1:]:
            exchange.chunk(frame)
        exchange.end_stream()

    stage.behave(stream)
    with stage.stream() as arriving:
        assert b"Hel" in next(arriving)
        stage.upstream.open("client gone")
    stage.assert_all_agree()
    # Reasoning tokens that were not delivered are part of the usage, which is charged.
    assert stage.spent_nanos() == CHAT_NANOS


def test_a_search_is_charged_as_its_response_reports(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({"results": [], "costDollars": {"total": 0.007}}))
    answer = stage.call("/v1/gateway/exa/search", "POST", json={"query": "x", "type": "deep-reasoning"})
    assert (answer.status_code, answer.headers["X-Cost-Usd"]) == (200, "0.007")
    assert stage.usage()[0]["model"] == "search"
    stage.behave(lambda exchange: exchange.json({"error": "bad"}, status=400))
    assert stage.call("/v1/gateway/exa/search", "POST", json={"query": ""}).status_code == 400
    assert stage.spent_nanos() == 7_000_000
    stage.assert_all_agree()


def test_a_transcript_in_text_is_charged_the_duration_of_its_file(stage: Stage) -> None:
    def transcribe(file: bytes) -> TestResponse:
        form = form_of(("model", b"whisper-1"), ("response_format", b"text"), ('file; filename="a.wav"', file))
        path = "/v1/gateway/openai/audio/transcriptions"
        return stage.call(path, "POST", data=form, content_type=FORM)

    stage.behave(lambda exchange: exchange.answer(b"A sentence.", 200, ("Content-Type", "text/plain")))
    answer = transcribe(wav(60))
    assert (answer.status_code, answer.headers["X-Cost-Usd"], answer.data) == (200, "0.006", b"A sentence.")
    refused = transcribe(b"fLaC")
    assert (refused.status_code, list(refused.get_json()["details"]["fields"])) == (400, ["response_format"])
    stage.assert_all_agree()


LIMITED = {"code": 429, "message": "Your app has exceeded its compute units per second capacity."}
REVERTED = {"code": 3, "message": "execution reverted: too many requests"}


@pytest.mark.parametrize(
    ("answers", "charged"),
    [
        ([{"error": LIMITED}] * 3, 0),
        ({"error": LIMITED}, 0),
        ({"error": {"code": -32005, "message": "daily request count exceeded, request rate limited"}}, 0),
        ({"error": {"code": "429", "message": "x"}}, 0),
        ({"error": {"message": "Too many requests"}}, 0),
        ([{"result": "0x1"}, {"error": LIMITED}, {"result": "0x2"}], 200_000),
        ([{"result": "0x1"}, {"result": "rate limit"}, {"error": REVERTED}], 300_000),
        ([{"error": {"code": -32005, "message": "query returned more than 10000 results"}}] * 3, 300_000),
    ],
)
def test_a_rate_limit_inside_a_batch_refunds_its_calls(
    build_app: Callable[..., Flask], sqlite_url: str, answers: object, charged: int
) -> None:
    calls = [{"jsonrpc": "2.0", "id": each, "method": "eth_blockNumber", "params": []} for each in range(3)]
    with gateway_stage(build_app, sqlite_url) as stage:
        stage.behave(lambda exchange: exchange.json(answers))
        answer = stage.call("/v1/gateway/alchemy/base", "POST", json=calls)
        assert (answer.status_code, answer.get_json()) == (200, answers)
        assert stage.spent_nanos() == charged
        stage.assert_all_agree()


def test_an_estimate_never_exceeds_the_hold(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url) as stage:
        content = {"choices": [{"message": {"role": "assistant", "content": "word " * 10_000}}]}
        stage.behave(lambda exchange: exchange.json(content))
        stage.chat(max_tokens=20)
        # 20 tokens of output at 10 000 nano-dollars, and a short input.
        assert 0 < stage.spent_nanos() <= 20 * 10_000 + 200 * 1_250
        stage.assert_all_agree()


def test_the_id_of_a_call_begins_with_its_time(stage: Stage) -> None:
    # On PostgreSQL, it is the month whose partition has the call's rows.
    before = time.time_ns() // 1_000_000
    assert stage.chat().status_code == 200
    (entry,) = stage.usage()
    identifier = uuid.UUID(entry["id"])
    assert identifier.version == 7
    assert before <= identifier.int >> 80 <= time.time_ns() // 1_000_000
