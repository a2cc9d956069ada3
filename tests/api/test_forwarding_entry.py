"""The WSGI entry of forwarded calls serves each request as the views behind Flask's dispatch do."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask
from werkzeug.test import Client, EnvironBuilder, TestResponse

from app.forwarding.call import ForwardingEntry
from tests.support.agents import Agent, register
from tests.support.gateway import CHAT, QUESTION, Stage, gateway_stage
from tests.support.upstreams import Exchange, chat_answer, chat_chunks

_JSON = "application/json"
_CLAUDE = {"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "Hello"}]}
_BLOCK = {"jsonrpc": "2.0", "id": 1, "method": "eth_blockNumber", "params": []}
_RANDOM = {"X-Request-Id", "X-Gateway-Request-Id", "X-Receipt", "Date"}


def chat(**more: Any) -> dict[str, Any]:
    return {"path": CHAT, "method": "POST", "data": json.dumps({**QUESTION, **more}), "content_type": _JSON}


def post(path: str, body: Any) -> dict[str, Any]:
    return {"path": path, "method": "POST", "data": json.dumps(body), "content_type": _JSON}


def get(path: str, method: str = "GET", **headers: str) -> dict[str, Any]:
    return {"path": path, "method": method, "headers": {k.replace("_", "-"): v for k, v in headers.items()}}


def with_headers(request: dict[str, Any], **headers: str) -> dict[str, Any]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return {**request, "headers": {**request.get("headers", {}), **named}}


SEARCH = "/v1/gateway/brave/web/search?q=agents"
REQUESTS: dict[str, dict[str, Any]] = {
    "chat": chat(),
    "streamed chat": chat(stream=True),
    "chat above the credits": chat(max_tokens=10**9),
    "chat with a denied field": chat(service_tier="priority", n=100),
    "chat of an unknown model": chat(model="nothing"),
    "chat in gzip": {**chat(), "data": gzip.compress(chat()["data"].encode()), "headers": {"Content-Encoding": "gzip"}},
    "chat in an unknown encoding": with_headers(chat(), Content_Encoding="x"),
    "chat that is not JSON": {**chat(), "data": "{"},
    "chat without a body": {**chat(), "data": ""},
    "chat repeated under a key": with_headers(chat(), Idempotency_Key="one"),
    "chat with headers of a proxy": with_headers(chat(), X_Forwarded_For="1.2.3.4", Connection="x-a", X_A="1"),
    "chat with a bearer key": with_headers(chat(), X_API_Key="", Authorization="Bearer {key}"),
    "chat with Google's header": with_headers(chat(), X_API_Key="", X_Goog_Api_Key="{key}"),
    "chat without a key": with_headers(chat(), X_API_Key=""),
    "chat with a wrong key": with_headers(chat(), X_API_Key="ak_" + "A" * 43),
    "chat with a payment": with_headers(chat(), X_API_Key="", X_Payment="0x" + "1" * 64),
    "chat with a malformed payment": with_headers(chat(), X_API_Key="", PAYMENT_SIGNATURE="x"),
    "large body without a key": {**with_headers(chat(), X_API_Key=""), "data": b" " * 300_000},
    "messages": post("/v1/gateway/anthropic/v1/messages", _CLAUDE),
    "gemini": post("/v1/gateway/gemini/v1beta/models/gemini-2.5-flash:generateContent", {"contents": []}),
    "rpc": post("/v1/gateway/alchemy/eth-mainnet", _BLOCK),
    "batch of rpc": post("/v1/gateway/alchemy/eth-mainnet", [_BLOCK, _BLOCK]),
    "search": get(SEARCH),
    "search with HEAD": get(SEARCH, "HEAD"),
    "search with a credential": get(f"{SEARCH}&api_key=x"),
    "search from a page": get(SEARCH, Origin="https://page.example"),
    "search for another host": get(SEARCH, Host="evil.example"),
    "search by the proxy itself": get(SEARCH, X_Gateway_Signature="v1=0"),
    "preflight": get(SEARCH, "OPTIONS", Origin="https://page.example"),
    "no such provider": get("/v1/gateway/unlisted/x"),
    "no such route": get("/v1/gateway/openai/files"),
    "no path": get("/v1/gateway/openai/"),
    "no provider": get("/v1/gateway/"),
    "wrong method": get(SEARCH, "DELETE"),
    "unknown method": get(SEARCH, "BREW"),
    "trace": get(SEARCH, "TRACE"),
    "path that leaves its base": get("/v1/gateway/brave/../openai/models"),
    "encoded path that leaves its base": get("/v1/gateway/brave/%2e%2e/openai/models"),
    "doubled slash": get("/v1/gateway/brave//web/search?q=agents"),
    "encoded provider": get("/v1/gateway/brav%65/web/search?q=agents"),
    "encoded prefix": get("/v1/gatew%61y/brave/web/search?q=agents"),
    "other service": get("/v1/proxy/00000000-0000-4000-8000-000000000000/x"),
    "malformed service": get("/v1/proxy/x/y"),
    "service without a path": get("/v1/proxy/x"),
    "health": get("/v1/health"),
}  # fmt: skip


def respond(exchange: Exchange) -> None:
    if b'"stream": true' in exchange.asked.body:
        exchange.start_stream()
        for chunk in chat_chunks():
            exchange.chunk(chunk)
        exchange.end_stream()
    else:
        exchange.json(chat_answer())


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url, cors_allowed_origins="https://page.example") as made:
        made.behave(respond)
        yield made


def send(app: Flask, agent: Agent, request: dict[str, Any]) -> TestResponse:
    headers = {"X-API-Key": "{key}", **request.get("headers", {})}
    filled = {name: value.replace("{key}", agent.key) for name, value in headers.items() if value}
    environ = EnvironBuilder(**{**request, "headers": filled}).get_environ()
    # As servers pass it: undecoded.
    environ["RAW_URI"] = environ["REQUEST_URI"] = request["path"]
    return Client(app.wsgi_app).open(environ)


def outcome(stage: Stage, agent: Agent, request: dict[str, Any]) -> tuple[Any, ...]:
    """Return the response, what the upstream was asked, and what the account was charged, without random ids."""
    before = len(stage.upstream.asked)
    response = send(stage.app, agent, request)
    headers = sorted((name, value) for name, value in response.headers if name not in _RANDOM)
    body: Any = response.get_data()
    if b'"request_id"' in body:
        body = {**json.loads(body), "request_id": ""}
    asked = [
        (each.method, each.target, [pair for pair in each.headers if pair[0] != "idempotency-key"], each.body)
        for each in stage.upstream.asked[before:]
    ]
    usage = agent.get("/v1/usage").get_json()
    rows = [{**row, "id": "", "api_key_id": "", "created_at": ""} for row in usage["logs"]]
    return response.status_code, headers, body, asked, rows, agent.get("/v1/balance").get_json()


def test_a_request_has_the_same_outcome_with_and_without_flask_dispatch(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = register(stage.app.test_client())
    served = {name: outcome(stage, stage.agent, request) for name, request in REQUESTS.items()}
    monkeypatch.setattr(ForwardingEntry, "__call__", lambda self, *arguments: self._dispatch(*arguments))
    for name, request in REQUESTS.items():
        assert (name, *served[name]) == (name, *outcome(stage, other, request))
    assert len({status for status, *_ in served.values()}) > 5
