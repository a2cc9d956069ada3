"""What operators look up across agents, in the console and by the API; and which roles, forms and texts it accepts."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from sqlalchemy import update

from app.adapters.upstream_http.exchange import HttpUpstream
from app.audit_log.trail import AuditEntry
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.identity import principal
from app.identity.principal import MasterKeyRole
from app.wallets.core.lifecycle import MovementStatus
from tests.api.test_console import ADMIN, OPERATOR, VIEWER, Browser, signed_in, text_of
from tests.support import webhooks
from tests.support.agents import Agent, register
from tests.support.fake_shopper import FakeShopper
from tests.support.market import offer
from tests.support.operators import Operator, entries
from tests.support.owner_world import World

SECTIONS: dict[str, Any] = tomllib.loads(Path("app/console/sections.toml").read_text("utf-8"))
HOSTILE = "</bdi><script>alert(1)</script>\"onmouseover='alert(2)'{{7*7}}"


def acts_of(section: dict[str, Any]) -> list[dict[str, Any]]:
    return [*section.get("new", ()), *section.get("acts", ()), *section.get("one", {}).get("acts", ())]


ACTS = [(slug, each["view"]) for slug, section in SECTIONS.items() for each in acts_of(section)]
SHOWING = {each["view"] for section in SECTIONS.values() for each in acts_of(section) if "shows" in each}
ENTERED = {"credits_usd": "1", "rpm": "60", "limit_usd": "1", "failed_since": "2026-11-28T06:30", "event_id": new_id()}


@pytest.fixture
def world(build_app: Callable[..., Flask], sqlite_url: str) -> World:
    return World(build_app(sqlite_url, shopper=FakeShopper()), "http://purser.test", {})


@pytest.mark.parametrize("role", MasterKeyRole)
def test_each_act_of_the_console_needs_its_role_a_token_and_the_host(app: Flask, role: MasterKeyRole) -> None:
    browser, _ = signed_in(app, role)
    shown = text_of(browser.get(""))
    [token] = set(re.findall(r'name="csrf_token" value="([^"]+)"', shown))
    assert len(ACTS) >= 12
    for slug, view in ACTS:
        is_new = any(view == each["view"] for each in SECTIONS[slug].get("new", ()))
        place = f"/admin/{slug}/{'' if is_new else f'{new_id()}/'}{view.partition('.')[2]}"
        form = {"csrf_token": token, "form_id": new_id(), **ENTERED}
        is_permitted = role is ADMIN or (role is OPERATOR and view in principal._OPERATOR_ACTS)
        # Of an object that does not exist, unless it shows a key: that needs a confirmation first.
        expected = 404 if is_permitted and view not in SHOWING else 403
        assert browser.client.post(place, data=form).status_code == expected, (slug, view)
        assert browser.client.post(place, data={**form, "csrf_token": token[:-1]}).status_code == 403
        foreign = {"Sec-Fetch-Site": "cross-site"}
        assert browser.client.post(place, data=form, headers=foreign).status_code == 403
        assert browser.client.post(place, data=form, headers={"Host": "evil.example"}).status_code in {403, 404}
        assert app.test_client().post(place, data=form).status_code == 303
        assert browser.get(place.removeprefix("/admin")).status_code in {404, 405}


def test_every_page_and_only_those_is_for_every_role(app: Flask) -> None:
    browser, _ = signed_in(app, VIEWER)
    for slug, section in SECTIONS.items():
        expected = 404 if slug == "overview" else 200
        assert browser.get(f"/{slug}").status_code == expected, slug
        assert app.test_client().get(f"/admin/{slug}").status_code == 303
        if "one" in section:
            assert browser.get(f"/{slug}/{new_id()}").status_code == 404, slug
    for path in ("/nothing", "/agents/x", "/approvals/x", "/agents/%2e%2e", "/purchases/%00"):
        assert browser.get(path).status_code == 404, path


def test_the_purchases_of_all_are_listed_without_what_opens_them(world: World) -> None:
    made = world.register()
    with world.app.app_context():
        purchase_id = world.buy(made)
        _, ops = signed_in(world.app)
        purchase = ops.get(f"/purchases/{purchase_id}").get_json()
        assert (purchase["account_id"], purchase["status"]) == (made["agentId"], "completed")
        body = {"url": "https://shop.example/p/2", "shippingAddress": {"name": "Ada", "zip": "94107"}}
        answer = world.app.test_client().post(
            "/v1/gateway/shopping/buy", json=body, headers={"X-API-Key": made["apiKey"]}
        )
        assert answer.status_code == 202
        listed = ops.get("/purchases").get_json()
        assert listed["pagination"]["total"] == 2
        assert ops.get("/purchases?status=completed").get_json()["pagination"]["total"] == 1
        assert ops.get(f"/purchases?account_id={new_id()}").get_json()["purchases"] == []
        # The token of a purchase opens it to whoever has it.
        assert "token" not in text_of(ops.get("/purchases"))


def test_movements_that_stay_pending_are_listed_with_the_command_to_run(world: World) -> None:
    made, hours = world.register(name="Ada"), timedelta(hours=2)
    then = clock.now() - hours
    pending: dict[str, Any] = {"status": MovementStatus.PENDING, "next_check_at": clock.now()}
    lost, slow = new_id(), new_id()
    world.add_transaction(made, **pending, created_at=then, id=slow)
    world.add_transaction(
        made, **pending, created_at=then + timedelta(minutes=1), id=lost, kind="bridge", error="refund_short: 0.1 ETH"
    )
    # None of these: too young, confirmed, a deposit, a leg of a bridge.
    world.add_transaction(made, **pending)
    world.add_transaction(made, created_at=then, next_check_at=clock.now())
    world.add_transaction(made, **pending, created_at=then, type="funding", cost_nanos=0)
    world.add_transaction(made, **pending, created_at=then, leg="source", bridge_id=lost, cost_nanos=0)
    browser, ops = signed_in(world.app, VIEWER)
    found = ops.get("/stuck-movements").get_json()
    assert [(each["movement"]["id"], each["agent_id"]) for each in found["movements"]] == [
        (slow, made["agentId"]), (lost, made["agentId"]),
    ]  # fmt: skip
    assert [each["command"] for each in found["movements"]] == [
        "python -m workers.schedule --once",
        f"flask --app wsgi bridges write-off {lost} --accept-partial-refund",
    ]
    page = text_of(browser.get("/stuck"))
    assert f"bridges write-off {lost}" in page
    assert "<strong>2</strong>" in text_of(browser.get(""))


def test_a_delivery_is_sent_again_from_its_row(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=5))
    browser, ops = signed_in(app, ADMIN)
    with app.app_context(), webhooks.receiver() as receiver:
        made = ops.post("/webhooks", {"url": receiver.url, "types": ["*"]}).get_json()
        assert (
            browser.send(f"/webhooks/{made['id']}", f"/webhooks/{made['id']}/test_platform_webhook").status_code == 303
        )
        webhooks.deliver()
        [first] = receiver.events
        place = f"/deliveries?webhook_id={made['id']}"
        again = browser.send(place, f"/deliveries/{made['id']}/replay_platform_webhook")
        assert (again.status_code, again.headers["Location"]) == (
            303, f"/admin{place}&done=replay_platform_webhook",
        )  # fmt: skip
        webhooks.deliver()
        assert [each["id"] for each in receiver.events] == [first["id"]] * 2
    page = f"/webhooks/{made['id']}"
    refused = browser.send(page, f"{page}/replay_platform_webhook", failed_since="yesterday")
    assert (refused.status_code, "a time such as" in text_of(refused)) == (400, True)
    assert browser.send(page, f"{page}/replay_platform_webhook", failed_since="2026-11-28T06:30").status_code == 303
    assert made["secret"] not in text_of(browser.get(page))


def test_the_console_says_whether_the_audit_log_is_intact(app: Flask) -> None:
    browser, ops = signed_in(app, VIEWER)
    assert "No entry was changed or removed." in text_of(browser.get("/audit-verification"))
    assert ops.get("/audit/verification").get_json()["intact"] is True
    with app.app_context():
        number, name = entries()[0].number, entries()[0].actor_name
        with unit_of_work() as session:
            session.execute(update(AuditEntry).where(AuditEntry.number == number).values(actor_name="nobody"))
        try:
            found = ops.get("/audit/verification").get_json()
            page = text_of(browser.get("/audit-verification"))
        finally:
            with unit_of_work() as session:
                session.execute(update(AuditEntry).where(AuditEntry.number == number).values(actor_name=name))
    assert (found["intact"], found["problems"]) == (False, [f"entry {number} was changed"])
    assert f"entry {number} was changed" in page


def test_names_and_texts_of_others_are_shown_as_texts(world: World) -> None:
    made = world.register(name=HOSTILE)
    agent = Agent(world.app.test_client(), made["agentId"], made["apiKey"], made["wallet"]["id"], "", "")
    with world.app.app_context():
        agent.post("/v1/services", {**offer(), "name": HOSTILE, "description": HOSTILE})
        world.add_transaction(made, status=MovementStatus.FAILED, error=HOSTILE[:60])
        world.ask(made, 5, note=HOSTILE)
        world.buy(made)
        browser, ops = signed_in(world.app)
        ops.post("/budgets", {"name": HOSTILE, "limit_usd": 5})
        ops.post("/webhooks", {"url": "https://hooks.example.com/?<script>'\"", "types": ["*"]})
    places = [f"/{slug}" for slug in SECTIONS if slug != "overview"]
    for path in (*places, f"/agents/{made['agentId']}", f"/transactions?agent_id={made['agentId']}"):
        page = text_of(browser.get(path))
        assert "alert(1)</script>" not in page, path
        assert not re.search(r"<[^>]+ onmouseover=", page), path
    reflected = text_of(browser.get("/agents?search=%22%3E%3Cscript%3Ealert(3)%3C/script%3E&done=%3Cb%3E"))
    assert "<script>alert(3)" not in reflected


def test_a_page_has_at_most_fifty_rows_whatever_is_asked(app: Flask) -> None:
    for number in range(55):
        register(app.test_client(), name=f"agent {number}")
    browser, _ = signed_in(app)
    for query in ("", "?limit=100000", "?offset=-5", "?offset=99999999999999999999", "?offset=1e9"):
        page = browser.get(f"/agents{query}")
        assert page.status_code == 200
        assert text_of(page).count("<tr>") <= 51
        assert len(page.data) < 40_000
    assert "51 to 55 of 55" in text_of(browser.get("/agents?offset=50"))


def test_no_page_of_the_console_is_open_to_an_api_key_or_another_cookie(app: Flask) -> None:
    agent = register(app.test_client())
    browser = Browser(app)
    browser.client.set_cookie("purser_console", agent.key)
    assert browser.get("/requests").status_code == 303
    ops = Operator(app.test_client(), new_id(), agent.key)
    assert ops.get("/stuck-movements").status_code == 401
