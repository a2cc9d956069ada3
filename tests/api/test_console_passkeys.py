"""Passkeys of operators: signing in to the console, confirming what shows a key, and attacks on both."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import select, update
from werkzeug.test import TestResponse

from app.console.models import ConsoleSession
from app.core import clock
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.identity.principal import MasterKeyRole
from app.owner.passkeys.models import Passkey
from tests.support import status_writes
from tests.support.agents import Agent, register
from tests.support.authenticators import SoftwareAuthenticator, challenge_of, prompt_of
from tests.support.operators import Operator, entries, operator
from tests.support.owners import Owner, forms_of
from tests.support.waiting import PATIENCE_SECONDS

VIEWER, OPERATOR, ADMIN = MasterKeyRole
HOST = "localhost"
SIGN_IN, PAGE = "/admin/sign-in/passkey", "/admin/passkeys"
API_KEY, MASTER_KEY = re.compile(r"ak_[A-Za-z0-9_-]{43}"), re.compile(r"mk_(?:viewer_)?[A-Za-z0-9_-]{43}")


@dataclass(slots=True)
class Person:
    """An operator with a browser at the console and a device."""

    app: Flask
    ops: Operator
    browser: Owner
    device: SoftwareAuthenticator

    def sign_in(self, browser: Owner | None = None) -> TestResponse:
        """Sign in by passkey."""
        used = browser or at_console(self.app)
        page = used.get("/admin/sign-in")
        self.device.counter += 1
        return used.send(page, SIGN_IN, passkey=self.device.sign(prompt_of(page, SIGN_IN)["challenge"]))

    def act(self, page: TestResponse, path: str, **fields: str) -> TestResponse:
        """Send a form, signed by the passkey."""
        self.device.counter += 1
        return self.browser.send(page, path, passkey=self.device.sign(challenge_of(page, path, **fields)), **fields)

    def add(self, **fields: str) -> TestResponse:
        """Add a passkey of the device."""
        offered = self.browser.send(self.browser.get(PAGE), PAGE, name="Laptop", **fields)
        if offered.status_code != 200:
            return offered
        created = self.device.create(prompt_of(offered, f"{PAGE}/create"))
        return self.browser.send(offered, f"{PAGE}/create", passkey=created)


class _Client(FlaskClient):
    """A client that sends its requests to one host."""

    host = HOST

    def open(self, *args: Any, **options: Any) -> TestResponse:
        return super().open(*args, base_url=f"http://{self.host}", **options)


def at_console(app: Flask, host: str = HOST) -> Owner:
    """Return a new browser at a host of the console."""
    client = _Client(app, app.response_class)
    client.host = host
    return Owner(client)


def device() -> SoftwareAuthenticator:
    return SoftwareAuthenticator(f"http://{HOST}", HOST)


@pytest.fixture
def app(sqlite_url: str, build_app: Callable[..., Flask]) -> Flask:
    return build_app(sqlite_url, settings={"console_hosts": f"{HOST},purser.test"})


def enter(app: Flask, role: MasterKeyRole = ADMIN, name: str = "Ada") -> Person:
    """Return an operator that has signed in by master key."""
    with app.app_context():
        ops = operator(app.test_client(), name, role=role)
    browser = at_console(app)
    assert browser.send(browser.get("/admin/sign-in"), "/admin/sign-in", master_key=ops.key).status_code == 303
    return Person(app, ops, browser, device())


@pytest.fixture
def ada(app: Flask) -> Person:
    """An admin with a passkey."""
    ada = enter(app)
    added = ada.add(master_key=ada.ops.key)
    assert (added.status_code, added.location) == (303, f"{PAGE}?passkeys=added"), added.text
    return ada


@pytest.fixture
def agent(app: Flask) -> Agent:
    return register(app.test_client(), name="Buyer")


def test_entries_have_the_network_of_the_browser_and_not_its_whole_address(app: Flask, ada: Person) -> None:
    for browser in (ada.browser, again := at_console(app)):
        browser.client.environ_base["REMOTE_ADDR"] = "2001:db8:1:2:3:4:5:6"
    assert ada.sign_in(again).location == "/admin"
    assert again.send(again.get("/admin/sign-in"), "/admin/sign-in", master_key=ada.ops.key).status_code == 303
    removed = ada.act(ada.browser.get(PAGE), f"{PAGE}/remove", **hidden(ada, f"{PAGE}/remove"))
    assert removed.status_code == 303, removed.text
    with app.app_context():
        noted = [each for each in entries() if (each.client_address or "").startswith("2001:")]
    assert {each.client_address for each in noted} == {"2001:db8:1:2::/64"}
    assert [each.action for each in noted] == [
        "master_key.passkey_sign_in", "master_key.console_sign_in", "master_key.passkey_removed",
    ]  # fmt: skip


def acts(app: Flask) -> list[tuple[str, str]]:
    with app.app_context():
        return [(each.action.partition(".")[2], each.actor_name) for each in entries() if "passkey" in each.action]


@pytest.mark.parametrize("role", MasterKeyRole)
def test_a_passkey_signs_in_with_the_role_of_its_master_key_and_its_name(
    app: Flask, agent: Agent, role: MasterKeyRole
) -> None:
    ada = enter(app, role)
    assert ada.add(master_key=ada.ops.key).status_code == 303
    again = at_console(app)
    assert ada.sign_in(again).location == "/admin"
    assert f"<bdi>Ada</bdi>, {role.value}" in again.get("/admin").text
    frozen = again.forge(again.get(f"/admin/agents/{agent.id}"), f"/admin/agents/{agent.id}/freeze_agent")
    assert frozen.status_code == (403 if role is VIEWER else 303)
    removed = ada.act(ada.browser.get(PAGE), f"{PAGE}/remove", **hidden(ada, f"{PAGE}/remove"))
    assert removed.status_code == 303, removed.text
    # The other session has ended.
    assert again.get("/admin").status_code == 303
    assert ada.browser.get("/admin").status_code == 200
    assert ada.sign_in().status_code == 403
    assert acts(app) == [(f"passkey_{each}", "Ada") for each in ("added", "sign_in", "removed")]


def hidden(ada: Person, path: str) -> dict[str, str]:
    """Return what a form of the page of passkeys names."""
    return {"passkey_id": forms_of(ada.browser.get(PAGE))[path]["passkey_id"]}


def test_a_passkey_is_added_only_with_the_master_key_and_then_with_a_passkey(app: Flask) -> None:
    ada = enter(app)
    other = enter(app, name="Bob")
    for wrong in ("", "mk_" + "x" * 43, other.ops.key):
        assert ada.add(master_key=wrong).status_code == 403
    assert ada.add(master_key=ada.ops.key).status_code == 303
    # Who has found the master key adds none of their own, and removes none.
    thief = at_console(app)
    thief.send(thief.get("/admin/sign-in"), "/admin/sign-in", master_key=ada.ops.key)
    page = thief.get(PAGE)
    assert thief.send(page, PAGE, master_key=ada.ops.key).status_code == 403
    assert thief.send(page, f"{PAGE}/remove", master_key=ada.ops.key).status_code == 403
    second, first = device(), ada.device
    offered = ada.act(ada.browser.get(PAGE), PAGE, name="Phone")
    created = second.create(prompt_of(offered, f"{PAGE}/create"))
    assert ada.browser.send(offered, f"{PAGE}/create", passkey=created).status_code == 303
    assert ada.browser.send(offered, f"{PAGE}/create", passkey=created).status_code == 403
    for each in (first, second):
        ada.device = each
        assert ada.sign_in().status_code == 303


def test_no_key_is_shown_or_made_without_a_passkey_if_there_is_one(app: Flask, ada: Person, agent: Agent) -> None:
    place = f"/admin/agents/{agent.id}"
    path = f"{place}/rotate_agent_key"
    page = ada.browser.get(place)
    for fields in ({}, {"master_key": ada.ops.key}, {"passkey": "{}"}):
        refused = ada.browser.send(page, path, **fields)
        assert (refused.status_code, API_KEY.search(refused.text)) == (403, None)
    shown = ada.act(page, path)
    [new_key] = set(API_KEY.findall(shown.text))
    assert (shown.status_code, shown.headers["Cache-Control"]) == (200, "no-store")
    assert agent.get("/v1/wallets").status_code == 401
    assert app.test_client().get("/v1/wallets", headers={"X-API-Key": new_key}).status_code == 200
    with app.app_context():
        [entry] = entries(action="agent.key_rotated")
    assert (entry.actor_id, entry.actor_name) == (ada.ops.id, "Ada")
    for place in ("", "/agents", f"/agents/{agent.id}", "/master-keys"):
        assert not API_KEY.search(ada.browser.get(f"/admin{place}").text)


@pytest.mark.parametrize("role", MasterKeyRole)
def test_a_master_key_is_made_only_after_the_own_one_is_entered_again(app: Flask, role: MasterKeyRole) -> None:
    ada, path = enter(app, role), "/admin/master-keys/create_master_key"
    page = ada.browser.get("/admin/master-keys")
    submit = ada.browser.send if role is ADMIN else ada.browser.forge
    wanted = {"name": "Night shift", "role": "viewer"}
    for key in ("", "mk_" + "x" * 43, enter(app, name="Bob").ops.key):
        refused = submit(page, path, master_key=key, **wanted)
        assert (refused.status_code, MASTER_KEY.search(refused.text)) == (403, None)
    shown = submit(page, path, master_key=ada.ops.key, **wanted)
    assert shown.status_code == (200 if role is ADMIN else 403)
    with app.app_context():
        made = [each for each in entries(action="master_key.created") if each.after["name"] == "Night shift"]
    assert [(each.actor_name, each.after["role"]) for each in made] == ([("Ada", "viewer")] if role is ADMIN else [])
    if role is ADMIN:
        [key] = set(MASTER_KEY.findall(shown.text))
        assert Operator(app.test_client(), "", key).get("/agents").status_code == 200
        # A form that is sent twice has the effect of one.
        assert key in ada.browser.send(page, path, master_key=ada.ops.key, **wanted).text


def test_an_assertion_confirms_one_form_with_its_values_once_within_ten_minutes(
    app: Flask, ada: Person, agent: Agent
) -> None:
    place, keys = f"/admin/agents/{agent.id}", "/admin/master-keys"
    path, create = f"{place}/rotate_agent_key", f"{keys}/create_master_key"
    page, other = ada.browser.get(keys), ada.browser.get(place)
    wanted = {"name": "Night shift", "role": "viewer"}
    ada.device.counter = 10
    signed = ada.device.sign(challenge_of(page, create, **wanted))
    token = forms_of(page)[create]["passkey_token"]
    assert ada.browser.send(page, create, passkey=signed, **{**wanted, "role": "admin"}).status_code == 403
    assert ada.browser.send(other, path, passkey=signed, passkey_token=token).status_code == 403
    # In another session of the same master key.
    second = at_console(app)
    assert ada.sign_in(second).status_code == 303
    ada.device.counter = 20
    signed = ada.device.sign(challenge_of(page, create, **wanted))
    assert second.send(second.get(keys), create, passkey=signed, passkey_token=token, **wanted).status_code == 403
    with time_machine.travel(clock.now() + timedelta(minutes=11), tick=False):
        assert ada.browser.send(page, create, passkey=signed, **wanted).status_code == 403
    assert ada.browser.send(page, create, passkey=signed, **wanted).status_code == 200
    assert ada.browser.send(page, create, passkey=signed, **wanted).status_code == 403
    # One that was signed to sign in.
    entrance = at_console(app).get("/admin/sign-in")
    ada.device.counter = 30
    signed = ada.device.sign(prompt_of(entrance, SIGN_IN)["challenge"])
    token = forms_of(entrance)[SIGN_IN]["passkey_token"]
    assert ada.browser.send(other, path, passkey=signed, passkey_token=token).status_code == 403


def test_the_passkey_of_an_owner_opens_nothing_in_the_console_and_that_of_an_operator_no_agent(app: Flask) -> None:
    # On one host: that the ids of relying parties differ cannot be what refuses.
    owner, agent = at_console(app, "purser.test"), app.test_client().post("/v1/agents/register", json={}).get_json()
    owner.claim(agent)
    owners, operators = (SoftwareAuthenticator("http://purser.test", "purser.test") for _ in range(2))
    assert owners.add_to(owner, f"/owner/agents/{agent['agentId']}").status_code == 303
    with app.app_context():
        ops = operator(app.test_client())
    browser = at_console(app, "purser.test")
    browser.send(browser.get("/admin/sign-in"), "/admin/sign-in", master_key=ops.key)
    assert Person(app, ops, browser, operators).add(master_key=ops.key).status_code == 303
    owner_sign_in = "/owner/sign-in/passkey"
    for used, right, path, wrong, wrong_path in (
        (owners, "/owner/sign-in", owner_sign_in, "/admin/sign-in", SIGN_IN),
        (operators, "/admin/sign-in", SIGN_IN, "/owner/sign-in", owner_sign_in),
    ):
        stranger = at_console(app, "purser.test")
        page, elsewhere = stranger.get(right), stranger.get(wrong)
        used.counter += 1
        signed = used.sign(prompt_of(elsewhere, wrong_path)["challenge"])
        assert stranger.send(elsewhere, wrong_path, passkey=signed).status_code == 403
        # Nor with a challenge of the other entrance.
        used.counter += 1
        signed = used.sign(prompt_of(page, path)["challenge"])
        token = forms_of(page)[path]["passkey_token"]
        assert stranger.send(elsewhere, wrong_path, passkey=signed, passkey_token=token).status_code == 403
        assert stranger.send(page, path, passkey=signed).status_code == 303
    page, keys = owner.get(f"/owner/agents/{agent['agentId']}/keys"), f"/owner/agents/{agent['agentId']}/keys/show"
    operators.counter = owners.counter = 50
    assert owner.send(page, keys, passkey=operators.sign(challenge_of(page, keys))).status_code == 403
    page, create = browser.get("/admin/master-keys"), "/admin/master-keys/create_master_key"
    wanted = {"name": "x", "role": "admin"}
    signed = owners.sign(challenge_of(page, create, **wanted))
    assert browser.send(page, create, passkey=signed, **wanted).status_code == 403


def test_the_passkey_of_another_operator_confirms_nothing(app: Flask, ada: Person) -> None:
    bob = enter(app, VIEWER, "Bob")
    assert bob.add(master_key=bob.ops.key).status_code == 303
    ada.device = bob.device
    path, wanted = "/admin/master-keys/create_master_key", {"name": "x", "role": "admin"}
    assert ada.act(ada.browser.get("/admin/master-keys"), path, **wanted).status_code == 403


def test_a_passkey_ends_with_its_master_key(app: Flask, ada: Person) -> None:
    bob = enter(app, name="Bob")
    signed_in = at_console(app)
    assert ada.sign_in(signed_in).status_code == 303
    assert bob.ops.delete(f"/master-keys/{ada.ops.id}").status_code == 200
    assert signed_in.get("/admin").status_code == 303
    assert ada.sign_in().status_code == 403
    with app.app_context(), read_only_unit() as session:
        holders = session.scalars(select(ConsoleSession.master_key_id).where(ConsoleSession.expires_at > clock.now()))
        assert bob.ops.id in set(holders)


def test_a_row_that_gives_a_passkey_to_another_master_key_is_refused(app: Flask, ada: Person) -> None:
    bob = enter(app, VIEWER, "Bob")
    assert bob.add(master_key=bob.ops.key).status_code == 303
    bob.device.user_handle = ada.device.user_handle
    with app.app_context():
        status_writes.expect_unverifiable_rows()
        with unit_of_work() as session:
            session.execute(update(Passkey).where(Passkey.key_id == bob.ops.id).values(key_id=ada.ops.id))
    assert bob.sign_in().status_code == 403


def test_a_counter_that_goes_back_is_refused_and_recorded(app: Flask, ada: Person) -> None:
    ada.device.counter = 40
    assert ada.sign_in().status_code == 303
    ada.device.counter = 20
    assert ada.sign_in().status_code == 403
    with app.app_context():
        [refused] = entries(action="master_key.passkey_refused")
    assert refused.subject_id == ada.ops.id
    assert (refused.after["counter"], refused.after["stored_counter"]) == (21, 41)


@pytest.mark.parametrize(
    "lie",
    [
        {"origin": "http://purser.test", "rp_id": "purser.test"}, {"rp_id": "purser.test"},
        {"origin": "http://localhost.evil.example"}, {"origin": f"http://{HOST}:81"}, {"user_verified": False},
        {"client_data": {"crossOrigin": True}},
    ],
)  # fmt: skip
def test_a_passkey_of_another_host_or_without_verification_is_refused(
    app: Flask, ada: Person, lie: dict[str, object]
) -> None:
    for name, value in lie.items():
        setattr(ada.device, name, value)
    assert ada.sign_in().status_code == 403
    bob = enter(app, name="Bob")
    for name, value in lie.items():
        setattr(bob.device, name, value)
    assert bob.add(master_key=bob.ops.key).status_code == 403


def test_a_form_of_another_browser_does_not_sign_in(app: Flask, ada: Person) -> None:
    page, victim = at_console(app).get("/admin/sign-in"), at_console(app)
    ada.device.counter += 1
    signed = ada.device.sign(prompt_of(page, SIGN_IN)["challenge"])
    sent = victim.client.post(SIGN_IN, data={**forms_of(page)[SIGN_IN], "passkey": signed})
    assert sent.status_code == 403


def test_guesses_of_the_master_key_in_a_form_are_limited(sqlite_url: str, build_app: Callable[..., Flask]) -> None:
    app = build_app(sqlite_url, settings={"console_hosts": HOST, "device_miss_limit": "3 per hour"})
    ada = enter(app)
    answers = [ada.add(master_key=f"mk_{number:043}").text for number in range(4)]
    assert ["Too many" in each for each in answers] == [False, False, False, True]
    assert "Too many" in ada.add(master_key=ada.ops.key).text


@pytest.mark.postgres
def test_one_assertion_sent_at_once_signs_in_once_and_makes_one_key(
    postgres_url: str, build_app: Callable[..., Flask]
) -> None:
    many = 8
    app = build_app(postgres_url, settings={"console_hosts": HOST, "database_pool_size": many})
    ada = enter(app)
    assert ada.add(master_key=ada.ops.key).status_code == 303

    def at_once(forms: list[tuple[Owner, dict[str, str]]], path: str) -> list[int]:
        start = Barrier(len(forms))

        def send(form: tuple[Owner, dict[str, str]]) -> int:
            start.wait(PATIENCE_SECONDS)
            return form[0].client.post(path, data=form[1]).status_code

        with ThreadPoolExecutor(len(forms)) as threads:
            return sorted(threads.map(send, forms))

    ada.device.counter = 1
    page = at_console(app).get("/admin/sign-in")
    signed, token = ada.device.sign(prompt_of(page, SIGN_IN)["challenge"]), forms_of(page)[SIGN_IN]["passkey_token"]
    browsers = [at_console(app) for _ in range(many)]
    forms = [(each, {**forms_of(each.get("/admin/sign-in"))[SIGN_IN], "passkey_token": token}) for each in browsers]
    assert at_once([(each, {**form, "passkey": signed}) for each, form in forms], SIGN_IN) == [303] + [403] * (many - 1)
    keys, path = ada.browser.get("/admin/master-keys"), "/admin/master-keys/create_master_key"
    wanted = {"name": "Night shift", "role": "viewer"}
    ada.device.counter = 2
    signed = ada.device.sign(challenge_of(keys, path, **wanted))
    form = {**forms_of(keys)[path], **wanted, "passkey": signed}
    copies = [at_console(app) for _ in range(many)]
    for each in copies:
        for cookie in ("purser_console", "purser_form"):
            found = ada.browser.client.get_cookie(cookie, domain=HOST)
            assert found
            each.client.set_cookie(cookie, found.value, domain=HOST)
    assert at_once([(each, form) for each in copies], path) == [200] + [403] * (many - 1)
