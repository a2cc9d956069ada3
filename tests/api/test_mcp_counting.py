"""Each message to `/mcp` is counted once and before any work, whatever it asks for and however it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import func, select

from app.db.unit_of_work import read_only_unit
from app.idempotency.service import IdempotencyKey
from tests.support.agents import Agent, register
from tests.support.mcp import request_of, send

_LIMIT = 5
_MESSAGES: list[Any] = [
    request_of("tools/list"),
    request_of("resources/list"),
    request_of("resources/read", uri="http://localhost/v1/wallets"),
    request_of("resources/read", uri="nothing"),
    request_of("ping"),
    request_of("no/such/method"),
    request_of("tools/call", name="get_balances", arguments={}),
    request_of("tools/call", name="get_balances", arguments={"unknown": 1}),
    request_of("tools/call", name="transfer", arguments={"request_id": "not visible"}),
    request_of("tools/call", name="get_balances", arguments={"wallet_id": "../x"}),
    request_of("tools/call", name="call_service", arguments={"service": "!"}),
    request_of("tools/call", name="call_service", arguments={"service": "none", "request_id": "r"}),
    request_of("tools/call", name="no_such_tool", arguments={}),
    {"jsonrpc": "2.0", "method": "notifications/initialized"},
    {"jsonrpc": "1.0", "id": 1, "method": "ping"},
    ["not", "a", "message"],
]


@pytest.fixture
def agent(build_app: Callable[..., Flask], sqlite_url: str) -> Any:
    settings = {"rate_limit_per_key": f"{_LIMIT} per hour", "keyless_rate_limit": f"{_LIMIT} per hour"}
    app = build_app(sqlite_url, settings=settings)
    with app.app_context():
        yield register(app.test_client())


@pytest.mark.parametrize("message", _MESSAGES, ids=str)
def test_a_message_with_a_key_counts_once_and_the_limit_refuses_it_before_any_work(message: Any, agent: Agent) -> None:
    for _ in range(_LIMIT):
        assert send(agent.client, message, key=agent.key).status_code != 429
    refusal = send(agent.client, message, key=agent.key)
    assert (refusal.status_code, refusal.get_json()["code"]) == (429, "RATE_LIMITED")
    assert agent.get("/v1/wallets").status_code == 429
    with read_only_unit() as session:
        assert session.scalar(select(func.count()).select_from(IdempotencyKey)) == 0


def test_bytes_that_are_no_json_count_as_well(agent: Agent) -> None:
    headers = {"Authorization": f"Bearer {agent.key}"}
    statuses = [agent.client.post("/mcp", data=b"{", headers=headers).status_code for _ in range(_LIMIT + 1)]
    assert statuses == [400] * _LIMIT + [429]


@pytest.mark.parametrize(
    "message",
    [
        request_of("tools/call", name="transfer", arguments={}),
        request_of("tools/call", name="get_usage", arguments={}),
        request_of("tools/call", name="get_balances", arguments={"unknown": 1}),
        request_of("resources/read", uri="http://localhost/v1/wallets"),
        request_of("tools/call", name="no_such_tool", arguments={}),
        request_of("no/such/method"),
        ["not", "a", "message"],
    ],
    ids=str,
)
def test_a_refusal_without_a_key_counts_by_the_status_that_the_api_would_have_answered(
    message: Any, agent: Agent
) -> None:
    for _ in range(_LIMIT):
        assert send(agent.client, message).status_code != 429
    assert send(agent.client, message).status_code == 429


def test_what_succeeds_without_a_key_is_not_counted(agent: Agent) -> None:
    for _ in range(_LIMIT * 2):
        assert send(agent.client, request_of("tools/list")).status_code == 200
        assert send(agent.client, request_of("resources/list")).status_code == 200
