"""`flask platform`: whatever the console does, a command does, as the person at the shell and without a key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from click.testing import Result
from flask import Flask

from app.core.identifiers import new_id
from app.events import feed
from tests.api.test_console_lookups import SECTIONS, acts_of
from tests.support.agents import Agent, register
from tests.support.fake_shopper import FakeShopper
from tests.support.market import offer
from tests.support.operators import entries, operator
from tests.support.owner_world import World
from tests.support.sqlite_copies import FilledOnce

VIEWS = {
    view
    for section in SECTIONS.values()
    for each in (section, section.get("one", {}), *acts_of(section))
    if (view := each.get("view"))
} - {"platform_payments.refund_payment"}  # `test_payment_refunds.py` has a chain for it.
# Arguments beside the ids of what exists.
MORE: dict[str, dict[str, str]] = {
    "grant_credits": {"credits_usd": "12.50"}, "change_agent": {"rpm": "60"}, "change_budget": {"limit_usd": "7.5"},
    "create_master_key": {"name": "night", "role": "viewer"}, "revoke_master_key": {"key_id": "{master_key}"},
    "revoke_gateway_key": {"key_id": "{gateway_key}"},
    "replay_platform_webhook": {"failed_since": "2026-01-01T00:00:00Z"},
}  # fmt: skip


@pytest.fixture
def world(build_app: Callable[..., Flask], sqlite_url: str) -> World:
    return World(build_app(sqlite_url, shopper=FakeShopper()), "http://purser.test", {})


@pytest.fixture
def run(app: Flask) -> Callable[..., Result]:
    return lambda *arguments: app.test_cli_runner().invoke(args=["platform", *arguments])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> FilledOnce[dict[str, str]]:
    return FilledOnce(tmp_path_factory.mktemp("known"))


@pytest.fixture
def known(world: World, filled: FilledOnce[dict[str, str]]) -> Iterator[dict[str, str]]:
    """The id of one of each kind, by the names of the parameters."""
    with world.app.app_context():
        yield filled.fill(world.app, lambda: one_of_each(world))


def one_of_each(world: World) -> dict[str, str]:
    made = world.register()
    agent = Agent(world.app.test_client(), made["agentId"], made["apiKey"], made["wallet"]["id"], "", "")
    with world.app.app_context():
        ops, other = operator(world.app.test_client()), operator(world.app.test_client(), "other")
        budget = ops.post("/budgets", {"name": "Team", "limit_usd": 5, "members": {"agents": [agent.id]}})
        hook = ops.post("/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]})
        gateway = world.app.test_client().post("/v1/keys", json={})
        listed = ops.get("/keys").get_json()["keys"]
        assert gateway.status_code == 201
        return {
            "agent_id": agent.id, "service_id": agent.post("/v1/services", offer()).get_json()["id"],
            "budget_id": budget.get_json()["id"], "webhook_id": hook.get_json()["id"],
            "purchase_id": world.buy(made), "request_id": budget.headers["X-Request-Id"],
            "master_key": other.id, "gateway_key": listed[0]["id"],
        }  # fmt: skip


@pytest.mark.parametrize("view", sorted(VIEWS))
def test_every_view_of_the_console_is_a_command(world: World, known: dict[str, str], view: str) -> None:
    name = view.partition(".")[2]
    [rule] = world.app.url_map.iter_rules(view)
    given = {each: known[each] for each in rule.arguments if each in known}
    given |= {each: value.format_map(known) for each, value in MORE.get(name, {}).items()}
    before = entries()[-1].number
    done = world.app.test_cli_runner().invoke(
        args=["platform", name, *(f"{each}={value}" for each, value in given.items())]
    )
    assert done.exit_code == 0, done.output
    assert isinstance(json.loads(done.stdout), dict)
    acted = [each for each in entries() if each.number > before]
    assert {(each.actor_kind, each.actor_id) for each in acted} <= {("command", None)}
    assert acted or "GET" in (rule.methods or ())


def test_what_is_listed_has_no_whole_key_and_what_was_made_has(run: Callable[..., Result]) -> None:
    made = json.loads(run("create_agent", 'name="12"', "credits_usd=12.50").stdout)
    assert (made["name"], made["credits_usd"]) == ("12", 12.5)
    # Without quotation marks it is a number, and not a text.
    assert run("create_agent", "name=12").exit_code == 1
    assert made["apiKey"].startswith("ak_")
    for listing in (run("list_agents"), run("get_agent", f"agent_id={made['agentId']}"), run("list_master_keys")):
        assert listing.exit_code == 0
        assert made["apiKey"] not in listing.output


def test_a_repeated_command_grants_once_with_a_key(app: Flask, run: Callable[..., Result]) -> None:
    agent = register(app.test_client())
    for _ in range(2):
        granted = run("grant_credits", f"agent_id={agent.id}", "credits_usd=1.25", "--idempotency-key", "night-7")
        assert json.loads(granted.stdout)["credits_usd"] == 11.25
    other = run("grant_credits", f"agent_id={agent.id}", "credits_usd=2", "--idempotency-key", "night-7")
    assert (other.exit_code, other.stdout) == (1, "")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([], 2, "OPERATION must be one of these: change_agent"), (["nothing"], 2, "grant_credits"),
        (["get_agent"], 1, "agent_id"), (["get_agent", "agent_id=x"], 1, "There is no such agent."),
        (["get_agent", "agent_id"], 2, "agent_id=VALUE"), (["list_agents", "limit=1", "limit=2"], 2, "given once"),
        (["list_agents", "limit=[1]"], 1, "limit"), (["freeze_agent", "agent_id=../keys"], 1, "Not found"),
        (["grant_credits", f"agent_id={new_id()}", "credits_usd=1e400"], 1, ""),
        (["grant_credits", f"agent_id={new_id()}", "credits_usd=NaN"], 1, "credits_usd"),
        (["grant_credits", f"agent_id={new_id()}", "credits_usd=-1"], 1, "credits_usd"),
        (["create_agent", "name=\ud800"], 1, "name"), (["list_agents", "search=" + "x" * 5000], 0, "agents"),
        (["get_request", "request_id=" + "9" * 4000], 1, ""),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_refused_with_a_reason(
    run: Callable[..., Result], arguments: list[str], code: int, said: str
) -> None:
    done = run(*arguments)
    assert done.exit_code == code, done.output
    assert said in done.output
    assert "Traceback" not in done.output


def test_a_webhook_that_the_command_made_is_served(app: Flask, run: Callable[..., Result]) -> None:
    agent = register(app.test_client(), name="Ada")
    made = json.loads(run("create_platform_webhook", "url=https://hooks.example.com/x", 'types=["wallet.*"]').stdout)
    assert (made["created_by"], made["status"], made["secret"][:6]) == (None, "enabled", "whsec_")
    run("freeze_agent", f"agent_id={agent.id}")
    with app.app_context():
        feed.number_all()
    listed = json.loads(run("list_platform_webhook_deliveries", f"webhook_id={made['id']}").stdout)
    assert listed["pagination"]["total"] == 1
    assert json.loads(run("test_platform_webhook", f"webhook_id={made['id']}").stdout)["event_id"]
    exported = json.loads(run("export_personal_data", f"agent_id={agent.id}").stdout)
    assert exported["tables"]["agents"][0]["name"] == "Ada"


def test_no_key_in_a_request_is_the_shell(app: Flask) -> None:
    client: Any = app.test_client()
    for key in ("shell", "", "mk_shell", "None"):
        assert client.get("/v1/platform/agents", headers={"X-Master-Key": key}).status_code == 401
