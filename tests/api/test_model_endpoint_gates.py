"""The gates of `/v1/gateway/<provider>/…` hold at `/v1/chat/completions`: each request has the same outcome at both."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from flask import Flask

from tests.support.gateway import CHAT, QUESTION, Stage, gateway_stage
from tests.support.oauth import Application
from tests.support.operators import operator
from tests.support.owners import person
from tests.support.upstreams import chat_answer

ONE = "/v1/chat/completions"


def gzipped(body: dict[str, Any]) -> dict[str, Any]:
    return {"data": gzip.compress(json.dumps(body).encode()), "headers": {"Content-Encoding": "gzip"}}


# A request by the body that names the model, and the client's headers; `json` is the whole question.
REQUESTS: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
    "served": lambda question, _: {"json": question},
    "bearer": lambda question, key: {"json": question, "headers": {"X-API-Key": "", "Authorization": f"Bearer {key}"}},
    "x-goog-api-key": lambda question, key: {"json": question, "headers": {"X-API-Key": "", "X-Goog-Api-Key": key}},
    "a wrong key": lambda question, _: {"json": question, "headers": {"X-API-Key": "ak_" + "A" * 43}},
    "two keys": lambda question, _: {"json": question, "headers": {"Authorization": "Bearer ak_" + "A" * 43}},
    "gzip": lambda question, _: gzipped(question),
    "unknown encoding": lambda question, _: {"json": question, "headers": {"Content-Encoding": "x"}},
    "malformed": lambda _, __: {"data": "{"},
    "a field twice": lambda question, _: {"data": json.dumps(question)[:-1] + ', "n": 1, "n": 2}'},
    "another spelling": lambda question, _: {"json": {**question, "Max_Tokens": 5}},
    "too deep": lambda question, _: {"data": json.dumps(question)[:-1] + ', "a": ' + "[" * 300 + "]" * 300 + "}"},
    "too large": lambda _, __: {"data": b" " * (33 * 2**20)},
    "too expensive": lambda question, _: {"json": {**question, "max_tokens": 1_000_000}},
    "a stored object": lambda question, _: {"json": {**question, "previous_response_id": "r"}},
    "a hosted tool": lambda question, _: {"json": {**question, "tools": [{"type": "file_search"}]}},
    "a parameter": lambda question, _: {"json": question, "query_string": "a=b"},
    "a credential in the query": lambda question, _: {"json": question, "query_string": "api_key=x"},
    "by the proxy itself": lambda question, _: {"json": question, "headers": {"X-Gateway-Signature": "v1=0"}},
    "another host": lambda question, _: {"json": question, "headers": {"Host": "evil.example"}},
    "headers of a proxy": lambda question, _: {"json": question, "headers": {"X-Forwarded-For": "1.2.3.4"}},
    "repeated under a key": lambda question, _: {"json": question, "headers": {"Idempotency-Key": "one"}},
}  # fmt: skip


@pytest.fixture
def stage(sqlite_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    with gateway_stage(build_app, sqlite_url) as made:
        made.behave(lambda exchange: exchange.json(chat_answer()))
        yield made


def outcome(stage: Stage, path: str, model: str, name: str) -> tuple[Any, ...]:
    """Return status, code, what the upstream got, and what was logged; keys for retries differ by the model."""
    before, logged = len(stage.upstream.asked), len(stage.usage())
    answer = stage.call(path, "POST", **REQUESTS[name]({**QUESTION, "model": model}, stage.agent.key))
    body = answer.get_json(silent=True) or {}
    sent = [
        (each.method, each.target, [pair for pair in each.headers if pair[0] != "idempotency-key"],
         any(name == "idempotency-key" for name, _ in each.headers), each.body)
        for each in stage.upstream.asked[before:]
    ]  # fmt: skip
    rows = stage.usage()
    new = [(row["provider"], row["model"], row["cost_usd"]) for row in rows[: len(rows) - logged]]
    return answer.status_code, body.get("code"), sent, new, answer.headers.get("X-Cost-Usd")


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_has_the_same_outcome_at_both_endpoints(stage: Stage, name: str) -> None:
    assert outcome(stage, ONE, "openai/gpt-5", name) == outcome(stage, CHAT, "gpt-5", name)
    stage.assert_nothing_held()


def test_a_revoked_key_and_a_blocked_agent_are_refused(stage: Stage) -> None:
    made = stage.agent.client.post("/v1/keys", json={}).get_json()
    ops = operator(stage.app.test_client())
    question = {**QUESTION, "model": "openai/gpt-5"}
    by_key = {"X-API-Key": made["api_key"]}
    assert stage.call(ONE, "POST", json=question, headers=by_key).status_code == 200
    assert ops.delete(f"/keys/{made['id']}").status_code == 200
    # The process still knows it; the step that holds credits does not.
    assert stage.call(ONE, "POST", json=question, headers=by_key).status_code == 401
    assert ops.post(f"/agents/{stage.agent.id}/freeze", {"block_keys": True}).status_code == 200
    assert stage.call(ONE, "POST", json=question).status_code == 401
    assert len(stage.upstream.asked) == 1


@pytest.mark.parametrize(("scope", "code"), [("gateway", 200), ("wallet:read", 403)])
def test_an_application_needs_the_scope_of_the_gateway(stage: Stage, scope: str, code: int) -> None:
    owner = person(stage.app)
    owner.claim({"claimCode": stage.agent.post("/v1/agents/claim-code", {}).get_json()["claimCode"]})
    application = Application(stage.app)
    application.connect(owner, {"agentId": stage.agent.id, "wallet": {"id": stage.agent.wallet_id}}, scope=[scope])
    assert application.post(ONE, {**QUESTION, "model": "openai/gpt-5"}).status_code == code
    assert application.get("/v1/models").status_code == code
    token = application.tokens["access_token"]
    assert all(token not in str(each.headers) for each in stage.upstream.asked)


def test_calls_are_counted_by_the_rate_limit(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    with gateway_stage(build_app, sqlite_url, rate_limit_per_key="2 per minute") as stage:
        statuses = [stage.call(ONE, "POST", json={}).status_code for _ in range(3)]
        assert statuses[-1] == 429
