"""The table of charges: what each way in which a call can end costs, and that nothing stays held after it."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from flask import Flask

from tests.support.gateway import SEARCH_NANOS, Stage, gateway_stage
from tests.support.loopback_http import unused_url
from tests.support.upstreams import Behaviour, Exchange, chat_answer, chat_chunks

# gpt-5 at 1.25 and 10 USD a million: 1000 in and 500 out.
CHAT_NANOS = 1_000 * 1_250 + 500 * 10_000


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def stage(database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, database_url, upstream_read_timeout_seconds="60") as made:
        yield made


def reset(exchange: Exchange) -> None:
    exchange.reset()


def hang_up(exchange: Exchange) -> None:
    exchange.hang_up()


def stay_silent(exchange: Exchange) -> None:
    exchange.await_hang_up()


def half_a_head(exchange: Exchange) -> None:
    exchange.send(b"HTTP/1.1 200 OK\r\nContent-Type: appl")
    exchange.hang_up()


def no_http(exchange: Exchange) -> None:
    exchange.send(b"SSH-2.0-OpenSSH_9.9\r\n")
    exchange.hang_up()


def lie_about_length(exchange: Exchange) -> None:
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


def redirect(exchange: Exchange) -> None:
    exchange.answer(b"", 302, ("Location", "https://elsewhere.example/"))


def with_usage(exchange: Exchange) -> None:
    exchange.json(chat_answer())


@dataclass(frozen=True, slots=True)
class Case:
    """An upstream's behaviour, what the caller sees, and what a chat and a search cost."""

    name: str
    behave: Behaviour
    status: int
    chat_nanos: int | None
    search_nanos: int

    def __str__(self) -> str:
        return self.name


# None: something, because a good answer without usage is never free.
TABLE = [
    Case("it answers with usage", with_usage, 200, CHAT_NANOS, SEARCH_NANOS),
    Case("it resets the connection", reset, 502, 0, 0),
    Case("it hangs up without a word", hang_up, 502, 0, 0),
    Case("its head breaks off", half_a_head, 502, 0, 0),
    Case("it speaks no HTTP", no_http, 502, 0, 0),
    Case("it promises more than it sends", lie_about_length, 502, 0, 0),
    Case("its body breaks off", half_a_chunk, 502, 0, 0),
    Case("it refuses the request", answering(400), 400, 0, SEARCH_NANOS),
    Case("it knows no such thing", answering(404), 404, 0, SEARCH_NANOS),
    Case("it refuses our credential", answering(401), 401, 0, 0),
    Case("our account is empty", answering(402), 402, 0, 0),
    Case("it forbids us", answering(403), 403, 0, 0),
    Case("it limits our rate", answering(429, ("Retry-After", 7)), 429, 0, 0),
    Case("it fails", answering(500), 500, 0, 0),
    Case("it is overloaded", answering(529), 529, 0, 0),
    Case("it compresses unasked", compressed, 200, CHAT_NANOS, SEARCH_NANOS),
    Case("it redirects", redirect, 302, 0, SEARCH_NANOS),
    Case("it has nothing to say", empty, 204, None, SEARCH_NANOS),
]


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_a_call_of_unknown_cost_is_charged_what_its_end_deserves(stage: Stage, case: Case) -> None:
    stage.behave(case.behave)
    answer = stage.chat()
    assert answer.status_code == case.status
    stage.assert_all_agree()
    if case.chat_nanos is None:
        assert 0 < stage.spent_nanos() < CHAT_NANOS
    else:
        assert stage.spent_nanos() == case.chat_nanos
    assert len(stage.usage()) == (0 if case.chat_nanos == 0 else 1)
    assert len(stage.upstream.asked) == 1


@pytest.mark.parametrize("case", TABLE, ids=str)
def test_a_fixed_price_is_kept_or_given_back_by_how_the_call_ends(stage: Stage, case: Case) -> None:
    stage.behave(case.behave)
    answer = stage.search()
    assert answer.status_code == case.status
    stage.assert_all_agree()
    assert stage.spent_nanos() == case.search_nanos
    assert len(stage.usage()) == bool(case.search_nanos)
    assert len(stage.upstream.asked) == 1


def test_an_upstream_that_never_answers_costs_nothing(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url, upstream_read_timeout_seconds="0.2") as stage:
        stage.behave(stay_silent)
        for answer in (stage.chat(), stage.chat(stream=True), stage.search()):
            assert (answer.status_code, answer.get_json()["code"]) == (504, "UPSTREAM_TIMEOUT")
        assert stage.spent_nanos() == 0
        stage.assert_all_agree()


def test_what_the_upstream_says_of_its_limits_reaches_the_caller(stage: Stage) -> None:
    stage.behave(answering(429, ("Retry-After", 7), ("x-ratelimit-remaining-requests", 0)))
    answer = stage.chat()
    assert (answer.headers["Retry-After"], answer.headers["x-ratelimit-remaining-requests"]) == ("7", "0")
    assert answer.get_json() == {"error": {"message": "no"}}


def test_an_upstream_that_cannot_be_reached_costs_nothing(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    gone = unused_url()
    with gateway_stage(build_app, sqlite_url, openai_base_url=gone, brave_base_url=gone) as stage:
        for answer in (stage.chat(), stage.chat(stream=True), stage.search()):
            assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR")
            assert gone not in answer.text
        assert stage.spent_nanos() == 0
        stage.assert_all_agree()


def test_a_compressed_answer_reaches_the_caller_byte_for_byte(stage: Stage) -> None:
    stage.behave(compressed)
    answer = stage.chat()
    assert answer.headers["Content-Encoding"] == "gzip"
    assert json.loads(gzip.decompress(answer.data)) == chat_answer()


def test_a_plain_answer_is_settled_before_it_is_given_out(stage: Stage) -> None:
    stage.behave(with_usage)
    answer = stage.chat()
    assert answer.headers["X-Cost-Usd"] == "0.00625"
    assert answer.headers["X-Credits-Remaining"] == "9.99375"
    assert stage.agent.get("/v1/balance").get_json() == {"credits_usd": 9.99375, "total_spent": 0.00625}
    entry = stage.usage()[0]
    assert (entry["provider"], entry["model"], entry["tokens_in"], entry["tokens_out"]) == (
        "openai", "gpt-5", 1000, 500,
    )  # fmt: skip


def test_a_call_without_a_model_is_logged_by_what_was_called_and_not_by_whose_ids(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({}))
    assert stage.call("/v1/gateway/brave/web/search/of-somebody/7?q=x").status_code == 200
    assert [(entry["provider"], entry["model"]) for entry in stage.usage()] == [("brave", "web/search")]


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


def test_a_stream_that_its_upstream_cuts_is_charged_for_what_passed(stage: Stage) -> None:
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
    # 100 words of five letters are likely 125 tokens; the input some dozens more.
    assert 125 * 10_000 <= stage.spent_nanos() < 200 * 10_000
    assert stage.usage()[0]["tokens_out"] >= 100


def test_a_stream_that_drips_for_ever_is_cut_at_the_longest_that_any_may_take(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
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
        with stage.stream() as arriving, pytest.raises(ConnectionResetError):
            pieces.extend(arriving)
        assert b"drop" in b"".join(pieces)
        stage.assert_all_agree()
        assert stage.open_holds() == 0
        assert stage.spent_nanos() > 0


def test_a_stream_that_its_caller_leaves_is_charged_and_closed_upstream(stage: Stage) -> None:
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


def test_a_caller_who_leaves_before_the_first_byte_pays_for_the_input_only(stage: Stage) -> None:
    def slow(exchange: Exchange) -> None:
        exchange.start_stream()
        exchange.await_hang_up()

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


def test_a_free_call_costs_nothing_but_wants_an_account_with_credits(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({"data": []}))
    assert stage.call("/v1/gateway/openai/models").headers["X-Cost-Usd"] == "0"
    stage.assert_all_agree()
    assert stage.spent_nanos() == 0


def test_a_cost_that_the_upstream_reports_beats_every_table(stage: Stage) -> None:
    reported = {**chat_answer("openai/gpt-5"), "usage": {**chat_answer()["usage"], "cost": 0.00095}}
    stage.behave(lambda exchange: exchange.json(reported))
    body = {"model": "openai/gpt-5", "messages": [], "max_tokens": 10}
    answer = stage.call("/v1/gateway/openrouter/chat/completions", "POST", json=body)
    assert answer.headers["X-Cost-Usd"] == "0.00095"
    assert stage.spent_nanos() == 950_000
    stage.assert_all_agree()


def test_a_caller_who_leaves_before_the_count_pays_what_it_tells(stage: Stage) -> None:
    def stream(exchange: Exchange) -> None:
        exchange.start_stream()
        frames = chat_chunks("Hel", "lo")
        exchange.chunk(frames[0])
        exchange.wait_for("caller gone")
        for frame in frames[1:]:
            exchange.chunk(frame)
        exchange.end_stream()

    stage.behave(stream)
    with stage.stream() as arriving:
        assert b"Hel" in next(arriving)
        stage.upstream.open("caller gone")
    stage.assert_all_agree()
    # Thoughts that nobody saw are in the count, and it is charged.
    assert stage.spent_nanos() == CHAT_NANOS
