"""The operators' console: what each role can do there and by the API, and whom it does not let in."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from app.console.models import ConsoleSession
from app.core import clock
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.identity import principal
from app.identity.principal import MasterKeyRole
from tests.support import status_writes
from tests.support.agents import Agent, register
from tests.support.market import offer
from tests.support.operators import Operator, entries, operator
from tests.support.owners import person

VIEWER, OPERATOR, ADMIN = MasterKeyRole
PLACES = ("agents", "approvals", "services", "usage", "keys", "master-keys", "webhooks", "audit", "doctor")


class Browser:
    """A browser at the console."""

    def __init__(self, app: Flask) -> None:
        self.client: FlaskClient = app.test_client()

    def get(self, path: str) -> TestResponse:
        return self.client.get(f"/admin{path}")

    def send(self, page: str, action: str, **fields: str) -> TestResponse:
        """Send a form of a page."""
        shown = self.get(page).get_data(as_text=True)
        hidden = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', shown))
        return self.client.post(f"/admin{action}", data={**hidden, **fields})

    def sign_in(self, key: str) -> TestResponse:
        return self.send("/sign-in", "/sign-in", master_key=key)


def signed_in(app: Flask, role: MasterKeyRole = ADMIN) -> tuple[Browser, Operator]:
    with app.app_context():
        ops = operator(app.test_client(), role.value, role=role)
    browser = Browser(app)
    assert browser.sign_in(ops.key).status_code == 303
    return browser, ops


def text_of(response: TestResponse) -> str:
    return response.get_data(as_text=True)


@pytest.fixture
def agent(app: Flask) -> Agent:
    return register(app.test_client(), name="Ada's helper")


def test_every_list_is_shown_and_no_page_shows_a_key(app: Flask, agent: Agent) -> None:
    agent.client.post("/v1/keys", json={})
    agent.post("/v1/services", offer())
    browser, ops = signed_in(app)
    assert ops.post("/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]}).status_code == 201
    pages = [browser.get(path) for path in ("", *(f"/{place}" for place in PLACES), f"/agents/{agent.id}")]
    made = ops.post("/budgets", {"name": "Team A", "limit_usd": 5, "members": {"agents": [agent.id]}}).get_json()
    agent.post("/v1/keys", {"limit_usd": 3})
    more = f"/transactions?agent_id={agent.id}", "/transactions", "/deliveries", f"/agent-keys?agent_id={agent.id}"
    pages += [browser.get(path) for path in (*more, f"/budgets/{made['id']}", "/costs?group_by=tag")]
    for page in pages:
        assert page.status_code == 200, text_of(page)
        for key in (agent.key, ops.key):
            assert key not in text_of(page)
        assert not re.search(r"(?:ak|gw|mk|whsec)_[A-Za-z0-9_-]{20}", text_of(page))
    assert "Ada&#39;s helper" in text_of(browser.get("/agents"))


ACTS = {
    "grant_credits": (ADMIN, {"credits_usd": "12.50"}),
    "freeze_agent": (OPERATOR, {}),
    "unfreeze_agent": (OPERATOR, {}),
    "revoke_claim_code": (OPERATOR, {}),
}


@pytest.mark.parametrize("role", MasterKeyRole)
@pytest.mark.parametrize("act", ACTS)
def test_an_act_needs_its_role_in_the_console_and_by_the_api(
    app: Flask, agent: Agent, role: MasterKeyRole, act: str
) -> None:
    needed, fields = ACTS[act]
    is_permitted = role is ADMIN or role is needed
    browser, ops = signed_in(app, role)
    answer = browser.send(f"/agents/{agent.id}", f"/agents/{agent.id}/{act}", **fields)
    assert answer.status_code == (303 if is_permitted else 403)
    if not is_permitted:
        assert "needs the master key" in text_of(answer)
    by_api = {
        "grant_credits": lambda: ops.post(f"/agents/{agent.id}/credits", {"credits_usd": 1}),
        "freeze_agent": lambda: ops.post(f"/agents/{agent.id}/freeze", {}),
        "unfreeze_agent": lambda: ops.post(f"/agents/{agent.id}/unfreeze", {}),
        "revoke_claim_code": lambda: ops.delete(f"/agents/{agent.id}/claim-code"),
    }[act]()
    assert by_api.status_code == (200 if is_permitted else 403)
    with app.app_context():
        acted = [each for each in entries(subject_id=agent.id) if each.actor_id == ops.id]
    # Both are acts of the person whose key it is.
    assert {each.actor_name for each in acted if each.action != "agent.shown"} == (
        {role.value} if is_permitted else set()
    )


@pytest.mark.parametrize("role", [VIEWER, OPERATOR])
def test_only_an_admin_is_shown_keys_and_makes_them(app: Flask, agent: Agent, role: MasterKeyRole) -> None:
    with app.app_context():
        ops, admin = operator(app.test_client(), role=role), operator(app.test_client(), "admin")
    assert ops.key.startswith(f"mk_{role.value}_")
    shown = ops.get(f"/agents/{agent.id}").get_json()["apiKey"], ops.get("/agents").get_json()["agents"][0]["apiKey"]
    assert all("…" in each and agent.key not in each for each in shown)
    listed = ops.get("/master-keys").get_json()["master_keys"]
    assert all("…" in each["key"] for each in listed)
    assert {each["role"] for each in listed} == {role.value, "admin"}
    for refused in (
        ops.post("/master-keys", {"name": "mine", "role": "admin"}), ops.delete(f"/master-keys/{admin.id}"),
        ops.post("/agents", {}), ops.post(f"/agents/{agent.id}/rotate-key", {}), ops.delete(f"/agents/{agent.id}"),
        ops.post("/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]}),
        ops.put("/controls", {"all": True, "daily_limit_usd": 1_000_000}),
    ):  # fmt: skip
        assert (refused.status_code, refused.get_json()["code"]) == (403, "INSUFFICIENT_SCOPE")
    assert admin.get(f"/agents/{agent.id}").get_json()["apiKey"] == agent.key


def test_the_limit_of_a_shared_budget_is_changed_on_its_page(app: Flask, agent: Agent) -> None:
    browser, ops = signed_in(app)
    made = ops.post("/budgets", {"name": "Team A", "limit_usd": 5, "members": {"agents": [agent.id]}}).get_json()
    place = f"/budgets/{made['id']}"
    assert "5.00 USD" in text_of(browser.get(place))
    assert browser.send(place, f"{place}/change_budget", limit_usd="7.5").status_code == 303
    assert "7.50 USD" in text_of(browser.get(place))
    assert ops.get(place).get_json()["remaining_usd"] == 7.5


def test_the_last_admin_stays(app: Flask) -> None:
    with app.app_context():
        admin = operator(app.test_client(), "admin")
    made = admin.post("/master-keys", {"name": "night", "role": "viewer"}).get_json()
    assert (made["role"], made["key"][:10]) == ("viewer", "mk_viewer_")
    revoke = app.test_cli_runner().invoke(args=["platform", "revoke_master_key", f"key_id={admin.id}"])
    assert revoke.exit_code != 0
    assert admin.get("/agents").status_code == 200
    created = app.test_cli_runner().invoke(args=["master-keys", "create", "--name", "night", "--role", "operator"])
    assert "mk_operator_" in created.output


def test_a_form_that_is_sent_twice_grants_once(app: Flask, agent: Agent) -> None:
    browser, _ = signed_in(app)
    page = f"/agents/{agent.id}"
    for _ in range(2):
        assert browser.send(page, f"{page}/grant_credits", credits_usd="12.50", form_id="one").status_code == 303
    assert "22.50 USD" in text_of(browser.get(page))
    assert browser.send(page, f"{page}/delete_agent").status_code == 404


@pytest.mark.parametrize("entered", ["much", "", "-1", "NaN", "Infinity", "1e3", "1_0", "1,000", "٣", "9" * 5000])
def test_what_is_no_plain_number_is_refused_and_grants_nothing(app: Flask, agent: Agent, entered: str) -> None:
    browser, _ = signed_in(app)
    page = f"/agents/{agent.id}"
    refused = browser.send(page, f"{page}/grant_credits", credits_usd=entered)
    assert (refused.status_code, "enter a number such as 25" in text_of(refused)) == (400, True)
    assert "10.00 USD" in text_of(browser.get(page))


def test_agents_are_found_by_name_email_address_and_id(each_database_url: str, build_app: Callable[..., Flask]) -> None:
    app = build_app(each_database_url)
    agent = register(app.test_client(), name="Ada's helper")
    others = [register(app.test_client(), name=f"agent 10{number}%") for number in range(3)]
    browser, ops = signed_in(app)
    for search in ("ada's", agent.id, agent.wallet_id, agent.address.lower(), agent.solana_address):
        found = ops.get(f"/agents?search={search}").get_json()
        assert [each["id"] for each in found["agents"]] == [agent.id], search
    assert ops.get("/agents?search=%25").get_json()["pagination"]["total"] == 3
    assert ops.get("/agents?search=_").get_json()["pagination"]["total"] == 0
    assert ops.get("/agents?search=nobody\x00").status_code in {200, 400}
    ops.post(f"/agents/{others[0].id}/freeze", {})
    assert [each["id"] for each in ops.get("/agents?frozen=true").get_json()["agents"]] == [others[0].id]
    assert ops.get("/usage?days=92").get_json() == {"days": []}
    assert ops.get("/services").get_json()["pagination"]["total"] == 0
    assert ops.get(f"/agents/{agent.id}/transactions?status=pending").get_json()["transactions"] == []
    assert browser.get("").status_code == 200
    page = text_of(browser.get("/agents?search=agent+10&offset=0"))
    assert "1 to 3 of 3" in page
    assert "Ada" not in page


def test_a_service_that_an_operator_pauses_cannot_be_called_or_resumed_by_its_owner(app: Flask, agent: Agent) -> None:
    service = agent.post("/v1/services", offer()).get_json()["id"]
    browser, ops = signed_in(app, OPERATOR)
    assert browser.send("/services", f"/services/{service}/pause_service").status_code == 303
    assert agent.put(f"/v1/services/{service}", {"status": "active"}).status_code == 200
    assert agent.get(f"/v1/proxy/{service}").status_code == 404
    assert service not in text_of(agent.get("/v1/catalog"))
    assert agent.get("/v1/services").get_json()["services"][0]["suspended"] is True
    assert ops.post(f"/services/{service}/resume").get_json()["suspended"] is False
    assert service in text_of(agent.get("/v1/catalog"))
    assert ops.post(f"/services/{agent.id}/pause").status_code == 404
    with app.app_context():
        assert [each.action for each in entries(subject_id=service)] == ["service.paused", "service.resumed"]


def test_a_session_ends_with_its_key_by_signing_out_and_by_time(app: Flask) -> None:
    browser, ops = signed_in(app, VIEWER)
    with app.app_context():
        admin = operator(app.test_client(), "admin")
    assert admin.delete(f"/master-keys/{ops.id}").status_code == 200
    assert browser.get("").status_code == 303
    browser, _ = signed_in(app)
    copy = Browser(app)
    copy.client.set_cookie("purser_console", browser.client.get_cookie("purser_console").value)  # type: ignore[union-attr]
    assert copy.get("").status_code == 200
    assert browser.send("", "/sign-out").status_code == 303
    assert (copy.get("").status_code, browser.get("").status_code) == (303, 303)
    browser, _ = signed_in(app)
    with app.app_context(), unit_of_work() as session:
        status_writes.expect_unverifiable_rows()
        session.execute(update(ConsoleSession).values(expires_at=clock.now()))
    assert browser.get("").status_code == 303


def test_a_changed_row_raises_no_role(app: Flask) -> None:
    browser, _ = signed_in(app, VIEWER)
    with app.app_context():
        status_writes.expect_unverifiable_rows()
        with unit_of_work() as session:
            session.execute(update(ConsoleSession).values(role="admin"))
    assert browser.get("").status_code == 303


def test_nobody_else_gets_in(app: Flask, agent: Agent) -> None:
    browser = Browser(app)
    for key in ("", "mk_" + "x" * 43, agent.key, "mk_viewer_" + "x" * 43):
        refused = browser.sign_in(key)
        assert (refused.status_code, "not a valid master key" in text_of(refused)) == (403, True)
    with app.app_context():
        ops = operator(app.test_client())
    assert app.test_client().get("/admin/agents", headers={"X-Master-Key": ops.key}).status_code == 303
    assert app.test_client().post("/admin/sign-in", data={"master_key": ops.key}).status_code == 400
    owner = person(app)
    assert owner.client.get("/admin").status_code == 303
    signed, _ = signed_in(app)
    forged = signed.client.post(f"/admin/agents/{agent.id}/freeze_agent", data={"csrf_token": "x"})
    assert forged.status_code == 403
    with app.app_context(), read_only_unit() as session:
        assert len(session.scalars(select(ConsoleSession)).all()) == 1


@pytest.mark.parametrize(
    ("hosts", "sent", "is_there"),
    [
        ("", "purser.test", False), ("admin.internal", "purser.test", False),
        ("admin.internal", "admin.internal", True), ("admin.internal, [::1]", "ADMIN.internal:8443", True),
        ("admin.internal", "admin.internal.evil.example", False),
    ],
)  # fmt: skip
def test_the_console_exists_on_its_hosts_only(
    build_app: Callable[..., Flask], sqlite_url: str, hosts: str, sent: str, *, is_there: bool
) -> None:
    app = build_app(sqlite_url, settings={"network": "testnet", "console_hosts": hosts})
    for path in ("/admin", "/admin/sign-in", "/admin/agents"):
        status = app.test_client().get(path, headers={"Host": sent}).status_code
        assert (status != 404) is is_there, (path, status)


def test_guesses_of_a_master_key_are_limited(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    browser = Browser(build_app(sqlite_url, settings={"device_miss_limit": "3 per hour"}))
    statuses = [browser.sign_in(f"mk_{number:043}").status_code for number in range(5)]
    assert statuses == [403, 403, 403, 429, 429]


def test_every_view_that_is_named_exists(app: Flask) -> None:
    named = re.findall(r'view = "([^"]+)"', Path("app/console/sections.toml").read_text("utf-8"))
    assert len(named) > 15
    assert {*named, *principal._OPERATOR_ACTS} <= app.view_functions.keys()
