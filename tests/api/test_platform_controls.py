"""`PUT …/controls` for one agent and for a fleet: locks, atomicity, safe repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask

from app.core.identifiers import new_id
from app.platform.agents import fleet
from tests.support.agents import Agent, register
from tests.support.ledger import statements
from tests.support.operators import Operator, entries, operator

UNKNOWN = "00000000-0000-4000-8000-000000000000"


def controls(agent: Agent, wallet_id: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = agent.get(f"/v1/wallets/{wallet_id or agent.wallet_id}/controls").get_json()["controls"]
    return found


def test_controls_are_set_for_all_wallets_of_an_agent_and_omitted_fields_are_kept(ops: Operator) -> None:
    agent = register(ops.client)
    second = agent.post("/v1/wallets", {}).get_json()["id"]
    assert controls(agent, second) is None
    answer = ops.put(f"/agents/{agent.id}/controls", {"daily_limit_usd": 7, "locked": True})
    assert answer.status_code == 200
    assert answer.get_json()["updated"] is True
    shown = {wallet["id"]: wallet["spending_controls"] for wallet in answer.get_json()["wallets"]}
    assert shown == {agent.wallet_id: controls(agent), second: controls(agent, second)}
    assert (controls(agent)["daily_limit_usd"], controls(agent)["weekly_limit_usd"]) == (7.0, 500.0)
    assert controls(agent, second)["daily_limit_usd"] == 7.0
    (entry,) = entries(action="agent.controls_set")
    assert entry.before == {agent.wallet_id: {"daily_limit_usd": "100", "locked": False}, second: None}
    created = {
        "weekly_limit_usd": "500", "monthly_limit_usd": "1000", "per_tx_limit_usd": "50",
        "allowed_addresses": [], "allowed_domains": [],
        "approval_threshold_usd": "0", "approve_new_recipients": False, "approve_new_domains": False,
    }  # fmt: skip
    changed = {"daily_limit_usd": "7", "locked": True}
    assert entry.after == {agent.wallet_id: changed, second: changed | created}


@pytest.mark.parametrize("fleet_of", [None, "agent_ids", "all"])
def test_a_wallet_without_controls_is_never_locked_without_limits(ops: Operator, fleet_of: str | None) -> None:
    agent = register(ops.client)
    second = agent.post("/v1/wallets", {}).get_json()["id"]
    if fleet_of is None:
        answer = ops.put(f"/agents/{agent.id}/controls", {"locked": True, "weekly_limit_usd": 0})
    else:
        whom = {"all": True} if fleet_of == "all" else {"agent_ids": [agent.id]}
        answer = ops.put("/controls", {**whom, "locked": True, "weekly_limit_usd": 0})
    assert answer.status_code == 200, answer.text
    limits = {name: value for name, value in controls(agent, second).items() if name.endswith("_usd")}
    assert limits == {
        "daily_limit_usd": 100.0, "weekly_limit_usd": 0.0, "monthly_limit_usd": 1000.0, "per_tx_limit_usd": 50.0,
        "approval_threshold_usd": None,
    }  # fmt: skip
    assert agent.put(f"/v1/wallets/{second}/controls", {"daily_limit_usd": 101}).status_code == 403


def test_controls_set_without_a_lock_leave_the_other_limits_unlimited(ops: Operator) -> None:
    agent = register(ops.client)
    second = agent.post("/v1/wallets", {}).get_json()["id"]
    assert ops.put(f"/agents/{agent.id}/controls", {"daily_limit_usd": 7}).status_code == 200
    assert (controls(agent, second)["daily_limit_usd"], controls(agent, second)["weekly_limit_usd"]) == (7, 0)


def test_a_lock_binds_the_agent_and_future_wallets_but_not_the_operator(ops: Operator) -> None:
    agent = register(ops.client)
    path = f"/agents/{agent.id}/controls"
    ops.put(path, {"daily_limit_usd": 7, "locked": True})
    assert agent.put(f"{agent.wallet_url}/controls", {"daily_limit_usd": 8}).get_json()["code"] == "CONTROLS_LOCKED"
    assert agent.put(f"{agent.wallet_url}/controls", {"daily_limit_usd": 6}).status_code == 200
    assert agent.delete(agent.wallet_url).get_json()["code"] == "CONTROLS_LOCKED"
    made = agent.post("/v1/wallets", {}).get_json()
    assert made["spending_controls"]["daily_limit_usd"] == 6.0
    ops.put(path, {"daily_limit_usd": 0, "locked": False})
    assert agent.put(f"{agent.wallet_url}/controls", {"daily_limit_usd": 9999}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        {}, {"unknown": 1}, {"locked": "yes"}, {"locked": None}, {"daily_limit_usd": -1},
        {"allowed_addresses": ["0x00"]}, {"allowed_domains": ["http://x"]}, {"per_tx_limit_usd": 10**10},
    ],
)  # fmt: skip
def test_invalid_controls_change_no_agent(ops: Operator, body: dict[str, Any]) -> None:
    agent = register(ops.client)
    before = controls(agent)
    assert ops.put(f"/agents/{agent.id}/controls", body).status_code == 400
    assert ops.put("/controls", {**body, "agent_ids": [agent.id]}).status_code == 400
    assert ops.put("/controls", {**body, "all": True}).status_code == 400
    assert controls(agent) == before


def test_controls_of_an_agent_without_a_wallet_are_refused(ops: Operator) -> None:
    agent = register(ops.client)
    agent.delete(agent.wallet_url)
    assert ops.put(f"/agents/{agent.id}/controls", {"locked": True}).status_code == 404
    body = ops.put("/controls", {"locked": True, "agent_ids": [agent.id]}).get_json()
    assert [failure["code"] for failure in body["failed"]] == ["NOT_FOUND"]


def test_a_fleet_response_lists_changes_and_failures_and_a_repetition_changes_nothing(ops: Operator) -> None:
    agents = [register(ops.client) for _ in range(4)]
    gone = register(ops.client)
    ops.delete(f"/agents/{gone.id}")
    named = [*(agent.id for agent in agents), agents[0].id, gone.id, UNKNOWN, "no id", ""]
    body = ops.put("/controls", {"agent_ids": named, "per_tx_limit_usd": 3}).get_json()
    assert body["updated"] is False
    assert sorted(body["changed"]) == sorted(agent.id for agent in agents)
    assert {failure["agentId"]: failure["code"] for failure in body["failed"]} == dict.fromkeys(
        [gone.id, UNKNOWN, "no id", ""], "NOT_FOUND"
    )
    assert {controls(agent)["per_tx_limit_usd"] for agent in agents} == {3.0}
    assert len(entries(action="agent.controls_set")) == 4
    again = ops.put("/controls", {"agent_ids": named[:5], "per_tx_limit_usd": 3}).get_json()
    assert (again["updated"], again["changed"]) == (True, [])
    assert sorted(again["unchanged"]) == sorted(agent.id for agent in agents)
    assert len(entries(action="agent.controls_set")) == 4


def test_lists_of_a_fleet_are_replaced_and_summarised_in_the_audit_log(ops: Operator) -> None:
    agent = register(ops.client)
    addresses = [f"0x{number:040x}" for number in range(1, 101)]
    body = {"agent_ids": [agent.id], "allowed_addresses": [*addresses, addresses[0]], "allowed_domains": ["a.example"]}
    assert ops.put("/controls", body).get_json()["changed"] == [agent.id]
    assert len(controls(agent)["allowed_addresses"]) == 100
    (entry,) = entries(action="agent.controls_set")
    assert entry.after is not None
    assert entry.after[agent.wallet_id]["allowed_addresses"]["count"] == 100
    assert entry.after[agent.wallet_id]["allowed_domains"] == ["a.example"]


@pytest.mark.parametrize(
    "who",
    [
        {}, {"all": False}, {"agent_ids": []}, {"agent_ids": None}, {"agent_ids": [UNKNOWN], "all": True},
        {"agent_ids": "all"}, {"agent_ids": [1]}, {"agent_ids": [None]}, {"all": "yes"},
        {"agent_ids": [UNKNOWN] * 10_001},
    ],
)  # fmt: skip
def test_a_call_without_agents_changes_no_agent(ops: Operator, who: dict[str, Any]) -> None:
    agent = register(ops.client)
    answer = ops.put("/controls", {"daily_limit_usd": 1, **who})
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert controls(agent)["daily_limit_usd"] == 100.0


def test_all_agents_are_changed_over_several_calls(ops: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = [register(ops.client) for _ in range(5)]
    monkeypatch.setattr(fleet, "MAX_AGENTS", 2)
    changed: list[str] = []
    after = None
    for _ in range(4):
        body = ops.put("/controls", {"all": True, "locked": True, "after": after}).get_json()
        changed += body["changed"]
        after = body["next_after"]
        if after is None:
            break
    assert changed == sorted(agent.id for agent in agents)
    assert all(controls(agent)["locked"] for agent in agents)


@pytest.mark.parametrize("after", ["", "x", "zzz", "\x00", 5, [UNKNOWN]])
def test_a_fleet_cursor_must_be_an_id(each_database_url: str, build_app: Callable[..., Flask], after: object) -> None:
    with build_app(each_database_url).app_context() as context:
        ops = operator(context.app.test_client())
        agent = register(context.app.test_client())
        answer = ops.put("/controls", {"all": True, "locked": True, "after": after})
        assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
        assert list(answer.get_json()["details"]["fields"]) == ["after"]
        assert controls(agent)["locked"] is False


def test_a_fleet_change_takes_few_statements_for_fifty_agents(ops: Operator) -> None:
    agents = [register(ops.client) for _ in range(50)]
    ids = [agent.id for agent in agents]
    with statements() as few:
        assert len(ops.put("/controls", {"agent_ids": ids[:2], "daily_limit_usd": 1}).get_json()["changed"]) == 2
    with statements() as many:
        assert len(ops.put("/controls", {"agent_ids": ids[2:], "daily_limit_usd": 1}).get_json()["changed"]) == 48
    assert len(many) == len(few)


def test_a_fleet_of_unknown_agents_is_answered_immediately(ops: Operator) -> None:
    ids = [new_id() for _ in range(10_000)]
    body = ops.put("/controls", {"agent_ids": ids, "daily_limit_usd": 1}).get_json()
    assert (body["changed"], len(body["failed"])) == ([], 10_000)
