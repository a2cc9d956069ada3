"""A provider's errors about the operator's account: 502 in our words, free, without any part of the operator's key."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from flask import Flask

from tests.support.agents import register
from tests.support.gateway import KEYS, Stage, gateway_stage, provider_settings
from tests.support.logs import written_logs
from tests.support.upstreams import Exchange, chat_answer

MASKED = "sk-oper********enai"
INCORRECT = {
    "error": {
        "message": f"Incorrect API key provided: {MASKED}. You can find your API key at https://platform.example",
        "type": "invalid_request_error",
        "code": "invalid_api_key",
    }
}


@pytest.fixture
def stage(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url) as made:
        yield made


@pytest.mark.parametrize("status", [401, 402, 403])
@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "plain"])
def test_an_error_about_the_operators_key_is_ours_and_free(stage: Stage, status: int, *, streamed: bool) -> None:
    stage.behave(lambda exchange: exchange.json(INCORRECT, status, ("X-Key", MASKED), ("WWW-Authenticate", MASKED)))
    with written_logs() as lines:
        for answer in (stage.chat(stream=streamed), stage.search()):
            assert (answer.status_code, answer.get_json()["code"]) == (502, "UPSTREAM_ERROR")
            assert answer.get_json()["details"] == {"reason": "operator_account", "upstream_status": status}
            assert "own credential or account" in answer.get_json()["error"]
            for part in ("sk-oper", "****", "platform.example", "Incorrect"):
                assert part not in answer.text + str(answer.headers)
    assert stage.spent_nanos() == 0
    stage.assert_all_agree()
    logged = [line for line in lines() if line["event"] == "upstream_rejected_credential"]
    assert [(line["level"], line["status"], line["reason"]) for line in logged] == [
        ("error", status, "invalid_api_key")
    ] * 2
    assert "sk-oper" not in str(logged)


def test_what_a_provider_quotes_of_a_request_is_not_about_the_operator(stage: Stage) -> None:
    said = 'Your credit balance is too low; incorrect "API key" invalid_api_key'

    def quoting(exchange: Exchange) -> None:
        detail = {"error": {"message": f"Unknown model: {said}", "input": {"type": "invalid_api_key"}}}
        exchange.json(detail, 400)

    stage.behave(quoting)
    with written_logs() as lines:
        assert stage.chat(messages=[{"role": "user", "content": said}]).status_code == 400
        assert stage.chat().status_code == 502
        assert stage.chat().status_code == 502
    logged = [line for line in lines() if line["event"] == "upstream_rejected_credential"]
    # One a minute for each client.
    assert len(logged) == 1
    stage.assert_all_agree()


def test_an_exhausted_quota_is_ours_and_a_rate_limit_is_relayed(stage: Stage) -> None:
    quota = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}
    stage.behave(lambda exchange: exchange.json(quota, 429, ("Retry-After", 9)))
    assert stage.chat().status_code == 502
    limited = {"error": {"code": "rate_limit_exceeded", "message": "Rate limit reached in organization org-Ab12Cd34"}}
    stage.behave(lambda exchange: exchange.json(limited, 429, ("Retry-After", 9)))
    answer = stage.chat()
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "9")
    assert answer.get_json()["error"] == {**limited["error"], "message": "Rate limit reached in organization …"}
    assert stage.spent_nanos() == 0
    stage.assert_all_agree()


@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_an_error_about_the_request_is_relayed_without_key_material(stage: Stage, encoding: str) -> None:
    blocked = {"error": {"code": "model_not_found", "message": f"No access to model gpt-9 with {MASKED}"}}

    def respond(exchange: Exchange) -> None:
        raw = json.dumps(blocked).encode()
        headers = [("Content-Type", "application/json"), ("X-Seen", f"key {MASKED}"), ("X-Kept", "yes")]
        if encoding:
            exchange.answer(gzip.compress(raw), 403, *headers, ("Content-Encoding", encoding))
        else:
            exchange.answer(raw, 403, *headers)

    stage.behave(respond)
    answer = stage.chat()
    assert answer.status_code == 403
    assert answer.get_json()["error"]["message"] == "No access to model gpt-9 with …"
    assert (answer.headers.get("X-Seen"), answer.headers["X-Kept"]) == (None, "yes")
    assert "Content-Encoding" not in answer.headers
    stage.assert_all_agree()


def test_an_error_that_is_cut_off_or_endless_is_ours(stage: Stage) -> None:
    def endless(exchange: Exchange) -> None:
        exchange.start_stream("application/json")
        for _ in range(40):
            exchange.chunk(b"x" * 65536)
        exchange.hang_up()

    def cut(exchange: Exchange) -> None:
        exchange.head(400, ("Content-Length", "100"))
        exchange.send(b"{")
        exchange.hang_up()

    for behaviour in (cut, lambda exchange: (exchange.head(400, ("Transfer-Encoding", "chunked")), endless(exchange))):
        stage.behave(behaviour)
        assert stage.chat().status_code == 502
        assert stage.search().status_code == 502
    assert stage.spent_nanos() == 0
    stage.assert_all_agree()


def test_the_operators_full_key_is_in_no_error(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({"error": KEYS["openai"]}, 400))
    assert KEYS["openai"] not in stage.chat().text


STRICT = """
[providers.mistral]
kind = "language-model"
base_url = "{url}/mistral/v1"
api_key = "mistral-key"
credential = {{header = "Authorization", value = "Bearer {{key}}"}}
dialect = "openai"
price = {{type = "tokens", table = "mistral"}}
usage_request = false
output_limit_field = "max_tokens"
routes = {{"POST chat/completions" = "chat"}}
"""
KNOWN = {"model", "messages", "stream", "max_tokens", "temperature"}


def test_a_provider_that_refuses_unknown_fields_gets_none(
    build_app: Callable[..., Flask], sqlite_url: str, tmp_path: Path
) -> None:
    def strict(exchange: Exchange) -> None:
        surplus = set(exchange.asked.json()) - KNOWN
        if surplus:
            exchange.json({"detail": [{"type": "extra_forbidden", "loc": sorted(surplus)}]}, 422)
        elif exchange.asked.json().get("stream"):
            exchange.start_stream()
            exchange.chunk(b'data: {"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":5,')
            exchange.chunk(b'"completion_tokens":1}}\n\ndata: [DONE]\n\n')
            exchange.end_stream()
        else:
            exchange.json(chat_answer("mistral-large-2512"))

    path = tmp_path / "providers.toml"
    with gateway_stage(build_app, sqlite_url) as stage:
        path.write_text(STRICT.format(url=stage.upstream.url))
        stage.behave(strict)
        settings = provider_settings(stage.upstream.url, gateway_providers_file=str(path), initial_credits_usd="0.05")
        app = build_app(sqlite_url, settings=settings)
        with app.app_context():
            agent = register(app.test_client())
            url, body = ("/v1/gateway/mistral/chat/completions", {"model": "mistral-large-2512", "messages": []})
            streamed = agent.post(url, {**body, "stream": True})
            assert (streamed.status_code, b"completion_tokens" in streamed.data) == (200, True)
            plain = agent.post(url, body)
            assert plain.status_code == 200, plain.text
            assert 0 < stage.upstream.asked[-1].json()["max_tokens"] == int(plain.headers["X-Max-Tokens-Applied"])
