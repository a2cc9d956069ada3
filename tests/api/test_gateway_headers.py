"""Canaries in every header and parameter: what must not cross the gateway does not, and everything else does."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from flask import Flask

from tests.support.gateway import KEYS, Stage, gateway_stage
from tests.support.upstreams import Exchange, chat_answer

CANARY = "canary-that-must-not-fly"
PRIVATE = [
    "Authorization", "Cookie", "X-Master-Key", "X-Payment", "X-Payment-Chain", "X-PAYMENT-SIGNATURE",
    "Payment-Signature", "X-Wallet-Id", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
    "Forwarded", "Via", "X-Real-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "Origin", "Referer", "Api-Key",
    "X-Goog-Api-Key", "X-Goog-User-Project", "X-Subscription-Token", "X-Cg-Pro-Api-Key", "Openai-Organization",
    "Openai-Project", "Proxy-Authorization", "Te", "Upgrade", "Keep-Alive", "X-Amz-Security-Token",
    "Sec-Fetch-Site", "X-Http-Method-Override", "X-Original-Url", "X-Rewrite-Url",
    "X-Upstream-Authorization", "X-Max-Price-Usd",
]  # fmt: skip
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


@pytest.mark.parametrize("slug", PROVIDER_CALLS)
def test_nothing_that_identifies_the_caller_reaches_an_upstream(stage: Stage, slug: str) -> None:
    method, path, header, value = PROVIDER_CALLS[slug]
    headers = dict.fromkeys(PRIVATE, CANARY) | HARMLESS
    headers |= {"Connection": "X-Listed, close", "X-Listed": CANARY}
    query = dict.fromkeys(("key", "api_key", "x_cg_pro_api_key", "access_token"), CANARY)
    body = {"model": "gpt-5", "messages": []} if method == "POST" else None
    answer = stage.call(path, method, headers=headers, query_string={**query, "kept": "yes"}, json=body)
    assert answer.status_code == 200, answer.text
    (asked,) = stage.upstream.asked
    assert CANARY not in repr(asked)
    assert stage.agent.key not in repr(asked)
    assert asked.header(header) == value
    assert [key for key in KEYS.values() if key in repr(asked)] == [KEYS[slug]]
    assert asked.target.endswith("?kept=yes")
    for name, sent in HARMLESS.items():
        assert asked.header(name) == sent
    assert asked.header("accept-encoding") == "identity"


def test_a_key_is_taken_from_where_a_client_of_the_provider_puts_it(stage: Stage) -> None:
    path = PROVIDER_CALLS["openai"][1]
    for header in ("Authorization", "X-Api-Key", "X-Goog-Api-Key"):
        value = f"Bearer {stage.agent.key}" if header == "Authorization" else stage.agent.key
        answer = stage.agent.client.post(
            path, json={"model": "gpt-5", "messages": []}, headers={header: value}
        )
        assert answer.status_code == 200, header
        assert stage.agent.key not in repr(stage.upstream.asked[-1])


def test_a_bearer_token_opens_no_door_outside_of_the_gateway(stage: Stage) -> None:
    headers = {"Authorization": f"Bearer {stage.agent.key}"}
    for path in ("/v1/wallets", "/v1/balance", "/v1/usage"):
        assert stage.agent.client.get(path, headers=headers).status_code == 401


def test_the_caller_s_version_of_a_dialect_wins_and_is_filled_in_where_missing(stage: Stage) -> None:
    path, body = (
        "/v1/gateway/anthropic/v1/messages",
        {"model": "claude-sonnet-4-5", "max_tokens": 5, "messages": []},
    )
    stage.call(path, "POST", json=body)
    stage.call(path, "POST", json=body, headers={"Anthropic-Version": "2026-10-21"})
    versions = [asked.header("anthropic-version") for asked in stage.upstream.asked]
    assert versions == ["2023-06-01", "2026-10-21"]


def test_nothing_that_the_upstream_tells_its_operator_reaches_the_caller(stage: Stage) -> None:
    told = {
        "Set-Cookie": "session=1", "Server": "secret-server", "Alt-Svc": "h3", "Strict-Transport-Security": "x",
        "Openai-Organization": "org-1", "Access-Control-Allow-Origin": "*", "Cf-Ray": "1", "Keep-Alive": "5",
        "Proxy-Authenticate": "Basic", "X-Cost-Usd": "0", "X-Gateway-Request-Id": "forged", "X-Listed": "1",
    }  # fmt: skip
    kept = {
        "X-Request-Id": "req_upstream", "Retry-After-Ms": "5", "X-Ratelimit-Limit-Requests": "60",
        "Openai-Processing-Ms": "3", "Etag": '"abc"',
    }  # fmt: skip

    def talkative(exchange: Exchange) -> None:
        headers = [*told.items(), *kept.items(), ("Connection", "X-Listed"), ("Link", "<1>"), ("Link", "<2>")]
        exchange.json(chat_answer(), 200, *headers)

    stage.behave(talkative)
    answer = stage.chat()
    seen = answer.headers
    for name, value in told.items():
        assert value not in seen.getlist(name), name
    for name, value in kept.items():
        assert seen.getlist(name) == [value]
    assert seen.getlist("Link") == ["<1>", "<2>"]
    assert "Connection" not in seen
    assert len(seen.getlist("Content-Length")) == 1


def test_the_operator_s_credential_never_comes_back(stage: Stage) -> None:
    def echo(exchange: Exchange) -> None:
        key = KEYS["openai"]
        exchange.json({"error": {"message": f"bad key {key}"}}, 401, ("Location", f"https://x.example/{key}"))

    stage.behave(echo)
    answer = stage.chat()
    assert answer.status_code == 401
    assert KEYS["openai"] not in repr(answer.headers) + answer.text
    assert "bad key …" in answer.get_json()["error"]["message"]


def test_cookies_of_one_caller_s_answer_are_not_sent_with_the_next_call(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json({}, 200, ("Set-Cookie", "tracker=1; Path=/")))
    stage.search()
    stage.search()
    assert [asked.header("cookie") for asked in stage.upstream.asked] == [None, None]


def test_an_idempotency_key_of_two_callers_is_two_keys_upstream(stage: Stage) -> None:
    stage.behave(lambda exchange: exchange.json(chat_answer()))
    other = stage.agent.client.post("/v1/keys", json={}).get_json()["api_key"]
    for key in (stage.agent.key, stage.agent.key, other):
        stage.chat(headers={"Idempotency-Key": "order-1", "X-API-Key": key})
    first, again, foreign = [asked.header("idempotency-key") for asked in stage.upstream.asked]
    assert first == again != foreign
    assert None not in (first, foreign)
    assert "order-1" not in f"{first}{foreign}"


def test_the_caller_s_key_goes_nowhere_under_any_name(stage: Stage) -> None:
    key = stage.agent.key
    headers = {"Foo": key, "X-Purser": f"Bearer {key}", "X-Harmless": "yes", "Authorization": "Bearer x"}
    assert stage.call("/v1/gateway/brave/web/search?q=a", headers=headers).status_code == 200
    sent = stage.upstream.asked[0].headers
    assert not any(key in value for _, value in sent)
    assert ("x-harmless", "yes") in sent
