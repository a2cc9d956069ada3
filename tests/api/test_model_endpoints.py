"""`/v1/chat/completions` and its siblings: which model is asked, who is charged what, and what the client sees."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.support.gateway import Stage, gateway_stage
from tests.support.loopback_http import unused_url
from tests.support.upstreams import Behaviour, Exchange, chat_answer, chat_chunks, sse

CHAT = "/v1/chat/completions"
GPT, LLAMA, ROUTED = "openai/gpt-5", "groq/llama-3.3-70b-versatile", "openrouter/openai/gpt-5-mini"
FREE = "openrouter/meta-llama/llama-3.3-70b-instruct:free"
BODY = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1000}
# The path of each provider at the upstream.
AT = {"openai": "/v1/", "groq": "/openai/v1/", "openrouter": "/api/v1/"}
GPT_NANOS = 1000 * 1_250 + 500 * 10_000
LLAMA_NANOS = 1000 * 590 + 500 * 790


def served(exchange: Exchange) -> None:
    if exchange.asked.json().get("stream"):
        exchange.start_stream()
        for frame in chat_chunks("Hello", model=exchange.asked.json()["model"]):
            exchange.chunk(frame)
        exchange.end_stream()
    else:
        exchange.json(chat_answer(exchange.asked.json()["model"]))


def status(code: int, *headers: tuple[str, object]) -> Behaviour:
    return lambda exchange: exchange.json({"error": {"message": "no", "type": "server_error"}}, code, *headers)


def cut_before_content(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk(sse({"id": "1", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})[0])
    exchange.hang_up()


def first_event_is_an_error(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk(sse({"error": {"message": "overloaded", "type": "server_error"}})[0])
    exchange.end_stream()


def reset(exchange: Exchange) -> None:
    exchange.reset()


def silent(exchange: Exchange) -> None:
    exchange.wait_for("never")


def silent_after_the_head(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.wait_for("never")


def truncated(exchange: Exchange) -> None:
    exchange.head(200, ("Content-Type", "application/json"), ("Content-Length", 500))
    exchange.send(b'{"id": ')
    exchange.hang_up()


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, upstream_read_timeout_seconds="1") as made:
        yield made


def behave(stage: Stage, **providers: Behaviour) -> None:
    def by_provider(exchange: Exchange) -> None:
        target = exchange.asked.target
        [name] = [name for name, prefix in AT.items() if target.startswith(prefix)]
        providers.get(name, served)(exchange)

    stage.behave(by_provider)


def ask(stage: Stage, *models: str, path: str = CHAT, **more: Any) -> TestResponse:
    named: dict[str, Any] = {"model": models[0]}
    if models[1:]:
        named["models"] = list(models[1:])
    headers = more.pop("headers", {})
    return stage.call(path, "POST", json={**named, **BODY, **more}, headers=headers)


def asked(stage: Stage) -> list[str]:
    """Return the models that were asked, by provider."""
    found = []
    for each in stage.upstream.asked:
        [name] = [name for name, prefix in AT.items() if each.target.startswith(prefix)]
        found.append(f"{name}/{each.json()['model']}")
    return found


def test_one_model_is_served_under_its_plain_name_and_names_its_cost(stage: Stage) -> None:
    behave(stage)
    answer = ask(stage, GPT)
    assert answer.status_code == 200
    assert answer.headers["X-Gateway-Model"] == GPT
    assert answer.headers["X-Cost-Usd"] == "0.00625"
    assert answer.get_json()["usage"]["cost"] == 0.00625
    assert stage.upstream.asked[0].json() == {"model": "gpt-5", **BODY}
    assert stage.upstream.asked[0].header("authorization") == "Bearer sk-operator-openai"
    assert stage.spent_nanos() == GPT_NANOS
    stage.assert_all_agree()


FAILURES: Mapping[str, tuple[Behaviour, bool]] = {
    "429": (status(429), False),
    "500": (status(500), False),
    "529": (status(529), False),
    "streamed 500": (status(500), True),
    "the operator's key is refused": (status(401), False),
    "reset": (reset, False),
    "silent": (silent, False),
    "truncated": (truncated, False),
    "streamed silence": (silent_after_the_head, True),
    "cut before content": (cut_before_content, True),
    "error event first": (first_event_is_an_error, True),
}


@pytest.mark.parametrize("failure", FAILURES)
def test_the_next_model_serves_and_only_it_is_charged(stage: Stage, failure: str) -> None:
    behaviour, is_streamed = FAILURES[failure]
    behave(stage, openai=behaviour)
    answer = ask(stage, GPT, LLAMA, stream=is_streamed)
    assert answer.status_code == 200
    assert b"Hello" in answer.data
    assert b"overloaded" not in answer.data
    assert answer.headers["X-Gateway-Model"] == LLAMA
    assert asked(stage) == [GPT, LLAMA]
    assert "models" not in stage.upstream.asked[1].json()
    [row] = stage.usage()
    assert (row["provider"], row["model"]) == tuple(LLAMA.split("/"))
    assert stage.spent_nanos() == LLAMA_NANOS
    stage.assert_all_agree()


def test_a_refused_connection_is_passed_over(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, openai_base_url=unused_url()) as stage:
        behave(stage)
        answer = ask(stage, GPT, LLAMA)
        assert (answer.status_code, answer.headers["X-Gateway-Model"]) == (200, LLAMA)
        assert stage.spent_nanos() == LLAMA_NANOS
        stage.assert_all_agree()


def test_a_stream_ends_with_its_cost_in_a_comment_and_is_else_unchanged(stage: Stage) -> None:
    behave(stage, openai=status(503))
    answer = ask(stage, GPT, LLAMA, stream=True)
    *events, comment = answer.data.splitlines(keepends=True)
    assert b"".join(events) == b"".join(chat_chunks("Hello", model="llama-3.3-70b-versatile"))
    assert json.loads(comment.removeprefix(b":")) == {"model": LLAMA, "cost": 0.000985}


def test_the_comment_begins_a_line_after_a_stream_that_ends_within_one(stage: Stage) -> None:
    def unterminated(exchange: Exchange) -> None:
        exchange.start_stream()
        *frames, last = chat_chunks("Hello")
        for frame in (*frames, last.rstrip()):
            exchange.chunk(frame)
        exchange.end_stream()

    behave(stage, openai=unterminated)
    assert b"data: [DONE]\n: {" in ask(stage, GPT, stream=True).data


def cut_after_content(exchange: Exchange) -> None:
    exchange.start_stream()
    exchange.chunk(chat_chunks("Hello")[0])
    exchange.hang_up()


def test_after_some_content_no_other_model_is_asked(stage: Stage) -> None:
    behave(stage, openai=cut_after_content)
    with stage.stream(CHAT, model=GPT, models=[LLAMA]) as pieces, pytest.raises(ConnectionResetError):
        assert b"Hello" in b"".join(pieces)
    assert asked(stage) == [GPT]
    [row] = stage.usage()
    assert row["provider"] == "openai"
    stage.assert_all_agree()


@pytest.mark.parametrize("code", [400, 404, 413, 422])
def test_an_error_about_the_request_is_the_answer(stage: Stage, code: int) -> None:
    behave(stage, openai=status(code))
    answer = ask(stage, GPT, LLAMA)
    assert (answer.status_code, answer.headers["X-Gateway-Model"]) == (code, GPT)
    assert asked(stage) == [GPT]
    assert stage.spent_nanos() == 0
    stage.assert_all_agree()


def test_a_failure_that_the_provider_bills_is_charged_and_is_the_answer(stage: Stage) -> None:
    behave(stage, openai=lambda exchange: exchange.json({**chat_answer(), "error": {"message": "late"}}, 500))
    answer = ask(stage, GPT, LLAMA)
    assert (answer.status_code, answer.headers["X-Cost-Usd"]) == (500, "0.00625")
    assert asked(stage) == [GPT]
    stage.assert_all_agree()


def test_malformed_json_is_charged_as_a_call_of_a_provider_is(stage: Stage) -> None:
    behave(stage, openai=lambda exchange: exchange.answer(b'{"id": oops', 200, ("Content-Type", "application/json")))
    answer = ask(stage, GPT, LLAMA)
    assert (answer.status_code, answer.data) == (200, b'{"id": oops')
    spent = stage.spent_nanos()
    assert stage.call("/v1/gateway/openai/chat/completions", "POST", json={"model": "gpt-5", **BODY}).status_code == 200
    assert stage.spent_nanos() == 2 * spent > 0
    stage.assert_all_agree()


def test_the_last_failure_is_the_answer_if_all_fail(stage: Stage) -> None:
    behave(stage, openai=status(500), groq=status(502))
    answer = ask(stage, GPT, LLAMA)
    assert (answer.status_code, answer.headers["X-Gateway-Model"]) == (502, LLAMA)
    assert stage.usage() == []
    stage.assert_all_agree()


def test_a_model_that_states_when_to_return_is_asked_again_after_all_others(stage: Stage) -> None:
    def limited_once(exchange: Exchange) -> None:
        (served if asked(stage)[1:] else status(429, ("Retry-After-Ms", 50)))(exchange)

    behave(stage, openai=limited_once, groq=status(500))
    answer = ask(stage, GPT, LLAMA)
    assert (answer.status_code, answer.headers["X-Gateway-Model"]) == (200, GPT)
    assert asked(stage) == [GPT, LLAMA, GPT]
    assert stage.spent_nanos() == GPT_NANOS
    stage.assert_all_agree()


@pytest.mark.parametrize(("wait", "headers"), [("20", {}), ("3", {"X-Stainless-Timeout": "2"})])
def test_a_wait_beyond_the_clients_own_limit_is_not_made(stage: Stage, wait: str, headers: dict[str, str]) -> None:
    behave(stage, openai=status(429, ("Retry-After", wait)))
    answer = ask(stage, GPT, headers=headers)
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, wait)
    assert asked(stage) == [GPT]


def test_a_model_that_has_failed_is_asked_last_for_a_while(stage: Stage) -> None:
    behave(stage, openai=status(500))
    assert ask(stage, GPT, LLAMA).status_code == 200
    assert ask(stage, GPT, LLAMA).headers["X-Gateway-Model"] == LLAMA
    assert asked(stage) == [GPT, LLAMA, LLAMA]
    behave(stage, groq=status(500))
    assert ask(stage, GPT, LLAMA).headers["X-Gateway-Model"] == GPT


def test_a_free_model_is_asked_without_credits_and_only_the_paid_fallback_is_refused(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0") as stage:
        behave(stage)
        answer = ask(stage, FREE, GPT)
        assert (answer.status_code, answer.headers["X-Gateway-Model"]) == (200, FREE)
        assert answer.headers["X-Cost-Usd"] == "0"
        behave(stage, openrouter=status(500))
        answer = ask(stage, FREE, GPT)
        assert (answer.status_code, answer.get_json()["code"]) == (402, "INSUFFICIENT_CREDITS")
        assert FREE in answer.get_json()["error"]
        assert ask(stage, GPT).status_code == 402
        assert asked(stage) == [FREE, FREE]
        assert stage.spent_nanos() == 0
        stage.assert_nothing_held()


def test_what_is_left_pays_for_the_models_that_it_covers_with_their_output_limited(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url, initial_credits_usd="0.002") as stage:
        behave(stage, groq=lambda exchange: exchange.json(
            chat_answer("llama-3.3-70b-versatile", tokens_in=10, tokens_out=exchange.asked.json()["max_tokens"])
        ))  # fmt: skip
        answer = ask(stage, "openai/gpt-5-pro", LLAMA, max_tokens=20_000)
        assert (answer.status_code, answer.headers["X-Gateway-Model"]) == (200, LLAMA)
        applied = int(answer.headers["X-Max-Tokens-Applied"])
        assert stage.upstream.asked[0].json()["max_tokens"] == applied < 2_600
        assert stage.spent_nanos() == 10 * 590 + applied * 790 <= 2_000_000
        stage.assert_nothing_held()


def test_names_of_the_operator_stand_for_lists_of_models(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    file = tmp_path / "providers.toml"
    file.write_text(f'[providers]\n[models]\nfast = ["{GPT}", "{LLAMA}"]\n')
    with gateway_stage(build_app, sqlite_url, gateway_providers_file=str(file)) as stage:
        behave(stage, openai=status(500))
        assert ask(stage, "fast").headers["X-Gateway-Model"] == LLAMA
        assert asked(stage) == [GPT, LLAMA]
        first, *_ = stage.call("/v1/models").get_json()["data"]
        assert (first["id"], first["owned_by"], first["pricing"]["completion"]) == ("fast", "operator", "0.00001")


REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "no model": ({}, "model"),
    "no provider": ({"model": "gpt-5"}, "model"),
    "unknown provider": ({"model": "nobody/gpt-5"}, "model"),
    "another dialect": ({"model": "brave/web"}, "openai, anthropic, gemini, openrouter, groq"),
    "not a list": ({"model": GPT, "models": {"a": LLAMA}}, "model"),
    "too many": ({"model": GPT, "models": [f"openai/{number}" for number in range(8)]}, "models"),
    "a header in the name": ({"model": "openai/x\r\nSet-Cookie: a"}, "model"),
    "not text": ({"model": 1}, "model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_names_that_are_no_models_are_refused(stage: Stage, case: str) -> None:
    body, text = REFUSED[case]
    answer = stage.call(CHAT, "POST", json={**BODY, **body})
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert text in answer.get_json()["error"]
    assert stage.upstream.asked == []


def test_each_endpoint_asks_the_path_that_the_provider_has(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({}))
    paths = {
        "chat/completions": {"gemini": "/v1beta/openai/chat/completions", "groq": "/openai/v1/chat/completions"},
        "messages": {"anthropic": "/v1/messages?beta=true", "openrouter": "/api/v1/messages?beta=true"},
        "responses": {"openai": "/v1/responses", "openrouter": "/api/v1/responses"},
        "embeddings": {"openai": "/v1/embeddings", "gemini": "/v1beta/openai/embeddings"},
    }
    for path, targets in paths.items():
        for provider, target in targets.items():
            query = "?beta=true" if provider == "anthropic" else ""
            answer = stage.call(f"/v1/{path}{query}", "POST", json={"model": f"{provider}/some-model", "input": "x"})
            assert answer.status_code == 200, answer.text
            assert stage.upstream.asked[-1].target == target.partition("?")[0] + query
            assert stage.upstream.asked[-1].json()["model"] == "some-model"


def test_the_list_has_the_models_of_configured_providers_with_their_prices(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    with gateway_stage(build_app, sqlite_url, groq_api_key="") as stage:
        listed = stage.call("/v1/models").get_json()
        assert listed["object"] == "list"
        models = {each["id"]: each for each in listed["data"]}
        assert models[GPT] == {
            "id": GPT, "object": "model", "created": 0, "owned_by": "openai",
            "pricing": {"prompt": "0.00000125", "completion": "0.00001"},
        }  # fmt: skip
        assert {each.partition("/")[0] for each in models} == {"openai", "anthropic", "gemini", "openrouter"}
        assert stage.call(f"/v1/models/{GPT}").get_json() == models[GPT]
        assert stage.call("/v1/models/openai%2Fgpt-5").get_json() == models[GPT]
        assert stage.call("/v1/models/openai/none").status_code == 404
