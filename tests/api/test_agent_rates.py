"""The rate of requests that an operator sets for one agent: for all its keys and ways in, and for no other agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from tests.api.test_console import ADMIN, signed_in, text_of
from tests.support.agents import Agent, register
from tests.support.mcp import request_of, send
from tests.support.operators import Operator, entries, operator

_SERVICE = 3


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str) -> Any:
    app = build_app(sqlite_url, settings={"rate_limit_per_key": f"{_SERVICE} per minute"})
    with app.app_context():
        yield app


def granted(agent: Agent, key: str | None = None) -> int:
    """Return how many requests are accepted until one is refused."""
    for number in range(20):
        answer = agent.client.get("/v1/balance", headers={"X-API-Key": key or agent.key})
        if answer.status_code == 429:
            return number
    raise AssertionError("no limit")


def permit(ops: Operator, agent: Agent, rpm: int | None) -> None:
    # An operator's own requests are limited as well.
    ops = operator(ops.client)
    answer = ops.patch(f"/agents/{agent.id}", {"rpm": rpm})
    assert (answer.status_code, answer.get_json()["rpm"]) == (200, rpm)
    assert ops.get(f"/agents/{agent.id}").get_json()["rpm"] == rpm


@pytest.mark.parametrize("rpm", [1, 7])
def test_an_agent_has_its_own_rate_and_another_agent_that_of_the_service(ops: Operator, rpm: int) -> None:
    agent, other = register(ops.client), register(ops.client)
    permit(ops, agent, rpm)
    assert (granted(agent), granted(other)) == (rpm, _SERVICE)
    refusal = agent.get("/v1/balance")
    assert refusal.headers["RateLimit-Policy"] == f'"key";q={rpm};w=60'
    assert 1 <= int(refusal.headers["Retry-After"]) <= 60
    assert other.get("/v1/balance").headers["RateLimit-Policy"] == f'"key";q={_SERVICE};w=60'


def test_null_returns_to_the_rate_of_the_service(ops: Operator) -> None:
    agent = register(ops.client)
    permit(ops, agent, 1)
    assert granted(agent) == 1
    permit(ops, agent, None)
    assert granted(agent) == _SERVICE


def test_all_keys_of_the_agent_and_mcp_share_its_rate(ops: Operator) -> None:
    agent = register(ops.client)
    further = agent.post("/v1/keys", {"name": "research"}).get_json()["api_key"]
    renewed = ops.post(f"/agents/{agent.id}/rotate-key", {"grace_seconds": 600}).get_json()["apiKey"]
    permit(ops, agent, 5)
    ping = request_of("ping")
    assert [send(agent.client, ping, key=renewed).status_code for _ in range(2)] == [200, 200]
    assert granted(agent, further) == 3
    for key in (agent.key, renewed, further):
        assert granted(agent, key) == 0
    assert send(agent.client, ping, key=agent.key).status_code == 429


def test_a_key_with_a_limit_of_its_own_keeps_it_below_a_higher_rate_of_its_agent(ops: Operator) -> None:
    agent = register(ops.client)
    further = agent.post("/v1/keys", {"rpm": 2}).get_json()["api_key"]
    permit(ops, agent, 9)
    assert (granted(agent, further), granted(agent)) == (2, 7)


@pytest.mark.parametrize("rpm", [0, -1, 10**6 + 1, 1.5, "60", True, [], 10**30])
def test_an_invalid_rate_is_refused_and_changes_nothing(ops: Operator, rpm: object) -> None:
    agent = register(ops.client)
    assert ops.patch(f"/agents/{agent.id}", {"rpm": rpm}).status_code == 400
    assert granted(agent) == _SERVICE


def test_a_change_of_the_rate_is_recorded_and_leaves_name_and_email(ops: Operator) -> None:
    agent = register(ops.client, name="Ada", email="ada@example.org")
    permit(ops, agent, 60)
    permit(ops, agent, None)
    noted = [(entry.before, entry.after) for entry in entries(action="agent.changed")]
    set_, reset = ({"requests_per_minute": None}, {"requests_per_minute": 60})
    assert noted == [(set_, reset), (reset, set_)]
    shown = operator(ops.client).get(f"/agents/{agent.id}").get_json()
    assert (shown["name"], shown["email"]) == ("Ada", "ada@example.org")


def test_the_command_sets_the_rate_and_null_returns_to_that_of_the_service(app: Flask, ops: Operator) -> None:
    agent, run = register(ops.client), app.test_cli_runner()
    change = ["platform", "change_agent"]
    for rpm, expected in (("2", 2), ("null", _SERVICE)):
        done = run.invoke(args=[*change, f"agent_id={agent.id}", f"rpm={rpm}"])
        assert done.exit_code == 0, done.output
        assert granted(agent) == expected
    assert run.invoke(args=[*change, "agent_id=nobody", "rpm=2"]).exit_code == 1
    assert run.invoke(args=[*change, f"agent_id={agent.id}", "rpm=-1"]).exit_code == 1
    assert {entry.actor_kind for entry in entries(action="agent.changed")} == {"command"}


def test_the_console_sets_the_rate_and_an_empty_field_removes_it(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    app = build_app(sqlite_url)
    browser, ops = signed_in(app, ADMIN)
    with app.app_context():
        agent = register(app.test_client())
        page = f"/agents/{agent.id}"
        for entered, expected in (("60", 60), ("", None)):
            assert browser.send(page, f"{page}/change_agent", rpm=entered).status_code == 303
            assert ops.get(page).get_json()["rpm"] == expected
        for wrong in ("many", "7.50", "1_000", "-1"):
            refused = browser.send(page, f"{page}/change_agent", rpm=wrong)
            assert (refused.status_code, "a whole number such as" in text_of(refused)) == (400, True)
