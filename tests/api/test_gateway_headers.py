"""Headers and parameters that must not cross the gateway, in either direction, and those that must."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import TestResponse

from tests.support.agents import register
from tests.support.gateway import CHAT, KEYS, Stage, gateway_stage
from tests.support.logs import written_logs
from tests.support.upstreams import Exchange, chat_answer

CANARY = "canary-that-must-not-fly"
PRIVATE = ["Authorization", "Cookie", "X-Payment", "X-Wallet-Id", "X-Forwarded-For", "X-Goog-Api-Key"]
HARMLESS = {
    "Anthropic-Version": "2026-10-21",
    "Anthropic-Beta": "some-beta",
    "Openai-Beta": "assistants=v2",
    "X-Stainless-Lang": "python",
    "User-Agent": "my-agent/1.0",
    "Accept": "application/vnd.custom+json",
    "X-Client-Request-Id": "mine-1",
}
PROVIDER_CALLS = {
    "openai": ("POST", "/v1/gateway/openai/chat/completions", "authorization", "Bearer sk-operator-openai"),
    "anthropic": ("POST", "/v1/gateway/anthropic/v1/messages", "x-api-key", "sk-operator-anthropic"),
    "gemini": (
        "POST", "/v1/gateway/gemini/v1beta/models/gemini-2.5-pro:generateContent", "x-goog-api-key",
        "operator-gemini",
    ),
    "openrouter": (
        "POST", "/v1/gateway/openrouter/chat/completions", "authorization", "Bearer sk-operator-openrouter",
    ),
    "groq": ("POST", "/v1/gateway/groq/chat/completions", "authorization", "Bearer sk-operator-groq"),
    "coingecko": ("GET", "/v1/gateway/coingecko/simple/price", "x-cg-demo-api-key", "operator-coingecko"),
    "brave": ("GET", "/v1/gateway/brave/web/search", "x-subscription-token", "operator-brave"),
    "exa": ("POST", "/v1/gateway/exa/search", "x-api-key", "operator-exa"),
    "tavily": ("POST", "/v1/gateway/tavily/search", "authorization", "Bearer operator-tavily"),
}  # fmt: skip


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url) as made:
        yield made


def test_nothing_that_identifies_the_client_reaches_an_upstream(stage: Stage) -> None:
    headers = dict.fromkeys(PRIVATE, CANARY) | HARMLESS
    headers |= {"Connection": "X-Listed, close", "X-Listed": CANARY}
    query = dict.fromkeys(("key", "api_key", "x_cg_pro_api_key", "access_token"), CANARY)
    for slug, (method, path, header, value) in PROVIDER_CALLS.items():
        body = {"model": "gpt-5", "messages": []} if method == "POST" else None
        # Language models accept listed parameters only; for searches and prices, all but credentials are forwarded.
        kept = {"kept": "yes"} if slug in {"coingecko", "brave", "exa", "tavily"} else {}
        answer = stage.call(path, method, headers=headers, query_string={**query, **kept}, json=body)
        assert answer.status_code == 200, answer.text
        asked = stage.upstream.asked[-1]
        assert CANARY not in repr(asked)
        assert stage.agent.key not in repr(asked)
        assert asked.header(header) == value
        assert [key for key in KEYS.values() if key in repr(asked)] == [KEYS[slug]]
        assert asked.target.partition("?")[2] == ("kept=yes" if kept else "")
        for name, sent in HARMLESS.items():
            assert asked.header(name) == sent
        assert asked.header("accept-encoding") == "identity"
    assert len(stage.upstream.asked) == len(PROVIDER_CALLS)


def test_a_key_is_read_from_the_header_that_the_providers_clients_use(stage: Stage) -> None:
    path = PROVIDER_CALLS["openai"][1]
    for header in ("Authorization", "X-Api-Key", "X-Goog-Api-Key"):
        value = f"Bearer {stage.agent.key}" if header == "Authorization" else stage.agent.key
        answer = stage.agent.client.post(path, json={"model": "gpt-5", "messages": []}, headers={header: value})
        assert answer.status_code == 200, header
        assert stage.agent.key not in repr(stage.upstream.asked[-1])


GEMINI = "/v1/gateway/gemini/v1beta/models/gemini-2.5-pro:generateContent"
SDK_PLACES: list[tuple[str, dict[str, str]]] = [
    (f"{GEMINI}?key={{key}}", {}),
    (f"{GEMINI}?alt=json&key={{key}}", {}),
    (CHAT, {"api-key": "{key}"}),
    (CHAT, {"x-api-key": "{key}"}),
    (CHAT, {"Authorization": "bearer {key}"}),
    (CHAT, {"Authorization": "BEARER   {key}"}),
    (CHAT, {"Authorization": "{key}"}),
    (CHAT, {"Authorization": "Token {key}"}),
    (CHAT, {"Authorization": "Basic {basic}"}),
    ("/v1/gateway/brave/web/search?q=a", {"X-Subscription-Token": "{key}"}),
    ("/v1/gateway/coingecko/ping", {"x-cg-pro-api-key": "{key}"}),
    ("/v1/gateway/coingecko/ping?x_cg_pro_api_key={key}", {}),
    ("/v1/gateway/coingecko/ping?x_cg_demo_api_key={key}", {}),
    ("/v1/gateway/alchemy/base/v2/{key}", {}),
    ("/v1/gateway/alchemy/base/{key}", {}),
    ("/v1/gateway/exa/search", {"x-api-key": "{key}"}),
]


def test_a_key_in_a_body_is_refused_and_reaches_no_provider(stage: Stage) -> None:
    body = {"query": "a", "api_key": stage.agent.key}
    answer = stage.agent.client.post("/v1/gateway/tavily/search", json=body)
    assert (answer.status_code, answer.get_json()["code"]) == (403, "ROUTE_NOT_ALLOWED")
    assert stage.agent.key not in answer.text
    assert stage.upstream.asked == []


def ask_at(stage: Stage, place: tuple[str, dict[str, str]], key: str, **headers: str) -> TestResponse:
    path, given = place
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    sent = {name: value.format(key=key, basic=basic) for name, value in given.items()}
    bodies: dict[str, Any] = {
        "gemini": {"contents": []},
        "openai": {"model": "gpt-5", "messages": [], "max_tokens": 5},
        "alchemy": {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []},
        "exa": {"query": "a"},
    }
    body = bodies.get(path.split("/")[3])
    method = "GET" if body is None else "POST"
    client = stage.app.test_client()
    return client.open(path.format(key=key), method=method, json=body, headers={**headers, **sent})


def test_a_key_where_an_sdk_sends_it_pays_and_goes_no_further(stage: Stage) -> None:
    paid: list[str] = []
    for place in SDK_PLACES:
        with written_logs() as lines:
            answer = ask_at(stage, place, stage.agent.key)
            written = lines()
        assert answer.status_code == 200, (place, answer.text)
        assert len(stage.upstream.asked) == len(paid) + 1, place
        assert stage.agent.key not in repr(stage.upstream.asked[-1]), place
        paid.insert(0, place[0].split("/")[3])
        assert [row["provider"] for row in stage.usage()] == paid, place
        assert [line["event"] for line in written] == ["request"], place
        assert stage.agent.key not in repr(written), place


def test_an_unknown_key_anywhere_is_refused_and_never_offered_a_payment(stage: Stage) -> None:
    for place, unknown in product(SDK_PLACES, ("ak_" + "0" * 43, "gw_" + "0" * 43, "ak_short")):
        answer = ask_at(stage, place, unknown)
        assert (answer.status_code, answer.get_json()["code"]) == (401, "UNAUTHORIZED"), (place, unknown)
        assert "unknown" in answer.get_json()["error"], (place, unknown)
        assert "PAYMENT-REQUIRED" not in answer.headers, (place, unknown)
        assert stage.upstream.asked == [], (place, unknown)


def test_two_different_keys_are_refused_wherever_they_are(stage: Stage) -> None:
    other = register(stage.app.test_client()).key
    for served, place in enumerate(SDK_PLACES, 1):
        header = "X-Goog-Api-Key" if "x-api-key" in place[1] else "X-API-Key"
        answer = ask_at(stage, place, stage.agent.key, **{header: other})
        assert answer.status_code == 401, place
        assert "two different API keys" in answer.get_json()["error"], place
        assert ask_at(stage, place, stage.agent.key, **{header: stage.agent.key}).status_code == 200, place
        assert len(stage.upstream.asked) == served, place


def test_a_bearer_token_is_refused_outside_the_gateway(stage: Stage) -> None:
    headers = {"Authorization": f"Bearer {stage.agent.key}"}
    for path in ("/v1/wallets", "/v1/balance", "/v1/usage"):
        assert stage.agent.client.get(path, headers=headers).status_code == 401


def test_the_clients_api_version_is_kept_and_a_missing_one_is_added(stage: Stage) -> None:
    path, body = ("/v1/gateway/anthropic/v1/messages", {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": []})
    stage.call(path, "POST", json=body)
    stage.call(path, "POST", json=body, headers={"Anthropic-Version": "2026-10-21"})
    versions = [asked.header("anthropic-version") for asked in stage.upstream.asked]
    assert versions == ["2023-06-01", "2026-10-21"]


def test_headers_meant_for_the_operator_do_not_reach_the_client(stage: Stage) -> None:
    dropped = {
        "Set-Cookie": "session=1", "Openai-Organization": "org-1", "X-Accel-Redirect": "/etc", "X-Cost-Usd": "0",
        "X-Gateway-Request-Id": "forged", "X-Listed": "1",
    }  # fmt: skip
    kept = {
        "Request-Id": "req_1", "Retry-After-Ms": "5", "X-Ratelimit-Limit-Requests": "60",
        "Openai-Processing-Ms": "3", "Etag": '"abc"',
    }  # fmt: skip

    def respond(exchange: Exchange) -> None:
        headers = [
            *dropped.items(),
            *kept.items(),
            ("Connection", "X-Listed"),
            ("X-Request-Id", "req_upstream"),
            ("X-Upstream-Request-Id", "forged"),
            ("Link", "<1>"),
            ("Link", "<2>"),
        ]
        exchange.json(chat_answer(), 200, *headers)

    stage.behave(respond)
    answer = stage.chat()
    seen = answer.headers
    for name, value in dropped.items():
        assert value not in seen.getlist(name), name
    for name, value in kept.items():
        assert seen.getlist(name) == [value]
    assert seen.getlist("Link") == ["<1>", "<2>"]
    assert seen.getlist("X-Upstream-Request-Id") == ["req_upstream"]
    assert seen.getlist("X-Request-Id") == seen.getlist("X-Gateway-Request-Id")
    assert "Connection" not in seen
    assert len(seen.getlist("Content-Length")) == 1


def test_a_cache_never_serves_a_paid_response_to_a_client_without_the_key(stage: Stage) -> None:
    path = PROVIDER_CALLS["coingecko"][1]
    answer = stage.call(path)
    assert (answer.headers.getlist("Cache-Control"), "Vary" in answer.headers) == (["no-store"], False)
    sent = [("Cache-Control", "public, max-age=30"), ("Vary", "Accept-Encoding"), ("Vary", "Origin")]
    stage.behave(lambda exchange: exchange.json({}, 200, *sent))
    headers = stage.call(path).headers
    assert headers.getlist("Cache-Control") == ["public, max-age=30"]
    *upstream_s, credentials = headers.getlist("Vary")
    assert upstream_s == ["Accept-Encoding", "Origin"]
    assert {"X-API-Key", "Authorization", "X-Payment"} <= set(credentials.split(", "))


def test_the_operators_credential_is_redacted_from_responses(stage: Stage) -> None:
    def echo(exchange: Exchange) -> None:
        key = KEYS["openai"]
        exchange.json({"error": {"message": f"bad key {key}"}}, 404, ("Location", f"https://x.example/{key}"))

    stage.behave(echo)
    answer = stage.chat()
    assert answer.status_code == 404
    assert KEYS["openai"] not in repr(answer.headers) + answer.text
    assert "bad key …" in answer.get_json()["error"]["message"]


@pytest.mark.parametrize("encoding", [None, "gzip"])
def test_the_operators_credential_is_not_in_streams_and_compressed_responses(
    stage: Stage, encoding: str | None
) -> None:
    words = b'data: {"error": "bad key ' + KEYS["openai"].encode() + b'"}\n\n'
    words = gzip.compress(words) if encoding else words
    headers = [("Content-Type", "text/event-stream"), ("Content-Encoding", encoding)][: 2 if encoding else 1]

    def in_pieces(exchange: Exchange) -> None:
        exchange.head(200, *headers, ("Transfer-Encoding", "chunked"))
        for start in range(0, len(words), 7):
            exchange.chunk(words[start : start + 7])
        exchange.chunk(b"")

    stage.behave(in_pieces)
    if encoding:
        # The pieces that have arrived together are read as one.
        try:
            refused = stage.chat(stream=True)
            assert KEYS["openai"].encode() not in refused.get_data()
            assert refused.status_code == 502  # before its first byte
        except ConnectionResetError:
            pass
    else:
        assert stage.chat(stream=True).data == words.replace(KEYS["openai"].encode(), "…".encode())
    stage.behave(lambda exchange: exchange.answer(words, 200, ("Content-Type", "text/html"), *headers[1:]))
    plain = stage.chat()
    assert (plain.status_code, KEYS["openai"].encode() in plain.data) == (502 if encoding else 200, False)
    stage.assert_all_agree()


def test_cookies_of_a_response_are_not_sent_with_the_next_call(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({}, 200, ("Set-Cookie", "tracker=1; Path=/")))
    stage.search()
    stage.search()
    assert [asked.header("cookie") for asked in stage.upstream.asked] == [None, None]


def test_the_same_idempotency_key_of_two_clients_differs_upstream(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    other = stage.agent.client.post("/v1/keys", json={}).get_json()["api_key"]
    for key in (stage.agent.key, stage.agent.key, other):
        stage.chat(headers={"Idempotency-Key": "order-1", "X-API-Key": key})
    first, again, foreign = [asked.header("idempotency-key") for asked in stage.upstream.asked]
    assert first == again != foreign
    assert None not in (first, foreign)
    assert "order-1" not in f"{first}{foreign}"


def test_the_clients_key_is_not_forwarded_in_any_header(stage: Stage) -> None:
    key = stage.agent.key
    headers = {"Foo": key, "X-Purser": f"Bearer {key}", "X-Harmless": "yes", "Authorization": "Bearer x"}
    assert stage.call("/v1/gateway/brave/web/search?q=a", headers=headers).status_code == 200
    sent = stage.upstream.asked[0].headers
    assert not any(key in value for _, value in sent)
    assert ("x-harmless", "yes") in sent


def test_a_call_is_found_in_the_log_by_the_id_of_its_response(stage: Stage) -> None:
    def asked_for(request_id: str | None) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = stage.agent.get("/v1/usage", request_id=request_id).get_json()["logs"]
        return found

    stage.behave(lambda exchange: exchange.json(chat_answer(tokens_in=1000, tokens_out=1)))
    answers = [stage.chat(), stage.chat()]
    stage.behave(lambda exchange: exchange.json({"web": {"results": []}}))
    answers.append(stage.search())
    made = [answer.headers["X-Gateway-Request-Id"] for answer in answers]
    assert len(stage.usage()) == 3
    assert [[each["id"] for each in asked_for(request_id)] for request_id in made] == [[each] for each in made]
    other = register(stage.app.test_client())
    assert other.get("/v1/usage", request_id=made[0]).get_json()["logs"] == []
    assert stage.agent.get("/v1/usage", request_id="1").status_code == 400
