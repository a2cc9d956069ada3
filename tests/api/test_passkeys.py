"""Passkeys of owners: add, sign in, confirm, remove, and attacks on each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import delete, update
from webauthn.helpers import bytes_to_base64url
from werkzeug.test import TestResponse

from app.agents.claims import OwnerCode
from app.core import clock
from app.db.unit_of_work import unit_of_work
from app.owner.passkeys import challenges
from app.owner.passkeys import service as passkeys
from app.owner.passkeys.models import Passkey, UsedPasskeyChallenge
from app.platform import personal_data
from tests.support.applications import change_settings
from tests.support.authenticators import SoftwareAuthenticator, challenge_of, prompt_of
from tests.support.operators import entries
from tests.support.owners import Owner, forms_of, person

ORIGIN = "http://purser.test"


@dataclass(slots=True)
class OwnerWithDevice:
    """An owner of an agent, with a device that can keep a passkey."""

    browser: Owner
    agent: dict[str, Any]
    device: SoftwareAuthenticator

    @property
    def page(self) -> str:
        return f"/owner/agents/{self.agent['agentId']}"

    def create(self, name: str = "Phone", **fields: str) -> TestResponse:
        """Add a passkey as the page asks for it."""
        return self.device.add_to(self.browser, self.page, name=name, **fields)

    def sign_in(self, browser: Owner) -> TestResponse:
        """Sign in with the passkey in some browser."""
        page = browser.get("/owner/sign-in")
        path = "/owner/sign-in/passkey"
        self.device.counter += 1
        return browser.send(page, path, passkey=self.device.sign(prompt_of(page, path)["challenge"]))

    def show_api_key(self, page: TestResponse | None = None) -> TestResponse:
        """Ask for the API key with the passkey."""
        path = f"{self.page}/keys/show"
        shown = page or self.browser.get(f"{self.page}/keys")
        self.device.counter += 1
        return self.browser.send(shown, path, passkey=self.device.sign(challenge_of(shown, path)))

    def acts(self) -> list[str]:
        """Return the kinds of the audit log's entries about passkeys."""
        return [each.action for each in entries() if each.action.startswith("agent.passkey_")]


@pytest.fixture
def app(request: pytest.FixtureRequest) -> Iterator[Flask]:
    # The database first: it must be dropped last.
    url = request.getfixturevalue(f"{getattr(request, 'param', 'sqlite')}_url")
    made: Flask = request.getfixturevalue("build_app")(url)
    with made.app_context():
        yield made


@pytest.fixture
def new_owner(app: Flask) -> Callable[[], OwnerWithDevice]:
    def new_owner() -> OwnerWithDevice:
        made = app.test_client().post("/v1/agents/register", json={}).get_json()
        browser = Owner(app.test_client())
        browser.claim(made)
        return OwnerWithDevice(browser, made, SoftwareAuthenticator(ORIGIN, "purser.test"))

    return new_owner


@pytest.fixture
def ada(new_owner: Callable[[], OwnerWithDevice]) -> OwnerWithDevice:
    """An owner with one passkey."""
    owner = new_owner()
    assert owner.create().status_code == 303
    return owner


@pytest.mark.parametrize("app", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_a_passkey_is_added_signs_in_confirms_and_is_removed(app: Flask, ada: OwnerWithDevice) -> None:
    assert "Phone" in ada.browser.get(f"{ada.page}/passkeys").text
    elsewhere = person(app)
    signed_in = ada.sign_in(elsewhere)
    assert (signed_in.status_code, signed_in.location) == (303, ada.page), signed_in.text
    assert elsewhere.get(ada.page).status_code == 200
    shown = ada.show_api_key()
    assert shown.status_code == 200
    assert ada.agent["apiKey"] in shown.text

    path = f"{ada.page}/passkeys"
    removed = ada.browser.send(ada.browser.get(path), f"{path}/remove")
    assert "was removed" in ada.browser.get(removed.location).text
    assert elsewhere.get(ada.page).status_code == 303
    assert ada.sign_in(person(app)).status_code == 403
    assert ada.acts() == ["agent.passkey_added", "agent.passkey_sign_in", "agent.passkey_removed"]


@pytest.mark.parametrize(
    "stated", [{"crossOrigin": True}, {"topOrigin": "https://evil.example"}, {"crossOrigin": "true"}]
)
def test_a_frame_of_another_site_adds_no_passkey_and_signs_nobody_in(
    app: Flask, new_owner: Callable[[], OwnerWithDevice], ada: OwnerWithDevice, stated: dict[str, Any]
) -> None:
    framed = new_owner()
    framed.device.client_data = ada.device.client_data = stated
    assert framed.create().status_code == 403
    assert ada.sign_in(person(app)).status_code == 403
    framed.device.client_data = ada.device.client_data = {"crossOrigin": False}
    assert framed.create().status_code == 303
    assert ada.sign_in(person(app)).status_code == 303


@pytest.mark.parametrize("at_creation", [True, False])
def test_a_passkey_that_changes_whether_it_can_be_copied_is_another_key(
    app: Flask, new_owner: Callable[[], OwnerWithDevice], *, at_creation: bool
) -> None:
    owner = new_owner()
    owner.device.backup_eligible = at_creation
    assert owner.create().status_code == 303
    owner.device.backup_eligible = not at_creation
    assert owner.sign_in(person(app)).status_code == 403
    owner.device.backup_eligible = at_creation
    assert owner.sign_in(person(app)).status_code == 303


def test_a_passkey_of_an_earlier_release_is_bound_to_what_it_says_first(app: Flask, ada: OwnerWithDevice) -> None:
    with unit_of_work() as session:
        session.execute(update(Passkey).values(backup_eligible=None))
    ada.device.backup_eligible = True
    assert ada.sign_in(person(app)).status_code == 303
    ada.device.backup_eligible = False
    assert ada.sign_in(person(app)).status_code == 403


def test_adding_a_passkey_needs_the_owner_key(new_owner: Callable[[], OwnerWithDevice]) -> None:
    owner = new_owner()
    for owner_key in ("", "ok_" + "a" * 43):
        assert owner.create(owner_key=owner_key).status_code == 403
    # A response without the offer that the owner key opens.
    path = f"{owner.page}/passkeys"
    form = forms_of(owner.browser.get(path))[path]
    response = owner.device.create({"user": {"id": "AAAA"}, "challenge": bytes_to_base64url(b"c" * 32)})
    forged = owner.browser.client.post(
        f"{path}/create", data={**form, "passkey": response, "passkey_token": "forged", "name": "x"}
    )
    assert forged.status_code == 403
    assert owner.acts() == []


@pytest.mark.parametrize(
    "lie",
    [
        {"origin": "https://purser.test.evil.example"},
        {"origin": "http://purser.test:81"},
        {"rp_id": "evil.example"},
        {"user_verified": False},
    ],
)
def test_a_passkey_for_another_site_or_without_verification_is_refused(
    app: Flask, ada: OwnerWithDevice, new_owner: Callable[[], OwnerWithDevice], lie: dict[str, Any]
) -> None:
    bob = new_owner()
    for name, value in lie.items():
        setattr(bob.device, name, value)
        setattr(ada.device, name, value)
    assert bob.create().status_code == 403
    assert ada.sign_in(person(app)).status_code == 403
    assert ada.show_api_key().status_code == 403


def test_a_signature_of_another_key_is_refused(app: Flask, ada: OwnerWithDevice) -> None:
    ada.device.key = SoftwareAuthenticator(ORIGIN).key
    assert ada.sign_in(person(app)).status_code == 403
    assert ada.show_api_key().status_code == 403


def test_the_passkey_of_another_owner_confirms_nothing(
    ada: OwnerWithDevice, new_owner: Callable[[], OwnerWithDevice]
) -> None:
    bob = new_owner()
    assert bob.create().status_code == 303
    ada.device = bob.device
    assert ada.show_api_key().status_code == 403
    # Neither when it is presented with the other owner's handle, nor added a second time.
    ada.device.user_handle = ""
    assert ada.show_api_key().status_code == 403
    assert ada.create().status_code == 403


def test_a_signature_is_accepted_once_for_its_form_and_ten_minutes(app: Flask, ada: OwnerWithDevice) -> None:
    page, path = ada.browser.get(f"{ada.page}/keys"), f"{ada.page}/keys/show"
    challenge = challenge_of(page, path)
    ada.device.counter = 1
    signed = ada.device.sign(challenge)
    with time_machine.travel(clock.now() + timedelta(minutes=11), tick=False):
        assert ada.browser.send(page, path, passkey=signed).status_code == 403
    assert ada.browser.send(page, path, passkey=signed).status_code == 200
    assert ada.browser.send(page, path, passkey=signed).status_code == 403
    # The device signs the same challenge again, for the same form and to sign in.
    ada.device.counter = 2
    again = ada.device.sign(challenge)
    assert ada.browser.send(page, path, passkey=again).status_code == 403
    token = forms_of(page)[path]["passkey_token"]
    other = person(app)
    form = other.get("/owner/sign-in")
    refused = other.send(form, "/owner/sign-in/passkey", passkey=again, passkey_token=token)
    assert refused.status_code == 403


def test_a_challenge_of_another_session_is_refused(app: Flask, ada: OwnerWithDevice) -> None:
    second = person(app)
    second.sign_in(ada.browser.key)
    page, path = second.get(f"{ada.page}/keys"), f"{ada.page}/keys/show"
    ada.device.counter += 1
    signed = ada.device.sign(challenge_of(page, path))
    mine = ada.browser.get(f"{ada.page}/keys")
    token = forms_of(page)[path]["passkey_token"]
    assert ada.browser.send(mine, path, passkey=signed, passkey_token=token).status_code == 403


def test_a_counter_that_goes_back_is_refused_and_recorded(app: Flask, ada: OwnerWithDevice) -> None:
    ada.device.counter = 40
    assert ada.sign_in(person(app)).status_code == 303
    ada.device.counter = 20
    assert ada.sign_in(person(app)).status_code == 403
    last = [each for each in entries() if each.action == "agent.passkey_refused"]
    assert [(each.after["counter"], each.after["stored_counter"]) for each in last] == [(21, 41)]


def test_a_device_without_a_counter_works(app: Flask, ada: OwnerWithDevice) -> None:
    for _ in range(2):
        ada.device.counter = -1
        assert ada.sign_in(person(app)).status_code == 303


def test_replacing_the_owner_key_ends_its_passkeys(app: Flask, ada: OwnerWithDevice) -> None:
    keys = ada.browser.get(f"{ada.page}/keys")
    path = f"{ada.page}/keys/replace-owner-key"
    ada.device.counter += 1
    signed = ada.device.sign(challenge_of(keys, path))
    assert ada.browser.send(keys, path, passkey=signed).status_code == 200
    assert ada.sign_in(person(app)).status_code == 403
    assert "Remove" not in ada.browser.get(f"{ada.page}/passkeys").text


def test_an_agent_has_at_most_ten_passkeys(ada: OwnerWithDevice) -> None:
    for _ in range(passkeys.MAX_PASSKEYS - 1):
        ada.device = SoftwareAuthenticator(ORIGIN, "purser.test")
        # Concurrent offers were made before the limit was reached.
        path = f"{ada.page}/passkeys"
        late = ada.browser.send(ada.browser.get(path), path, owner_key=ada.browser.key, name="Late")
        assert ada.create().status_code == 303
    ada.device = SoftwareAuthenticator(ORIGIN, "purser.test")
    response = ada.device.create(prompt_of(late, f"{path}/create"))
    assert ada.browser.send(late, f"{path}/create", passkey=response).status_code == 409


@pytest.mark.parametrize(
    "response", ["", "{}", "[]", "null", "x" * 9_000, '{"id":"AA","rawId":"AA","type":"public-key","response":{}}']
)
def test_a_malformed_response_is_refused(app: Flask, ada: OwnerWithDevice, response: str) -> None:
    browser = person(app)
    page = browser.get("/owner/sign-in")
    assert browser.send(page, "/owner/sign-in/passkey", passkey=response).status_code == 403
    keys = ada.browser.get(f"{ada.page}/keys")
    assert ada.browser.send(keys, f"{ada.page}/keys/show", passkey=response).status_code == 403


def test_a_form_of_another_site_does_not_sign_in(app: Flask, ada: OwnerWithDevice) -> None:
    victim, page = person(app), person(app).get("/owner/sign-in")
    ada.device.counter += 1
    path = "/owner/sign-in/passkey"
    signed = ada.device.sign(prompt_of(page, path)["challenge"])
    sent = victim.client.post(path, data={**forms_of(page)[path], "passkey": signed})
    assert sent.status_code == 403


@pytest.mark.parametrize(
    ("base_url", "rp_id", "origin"),
    [
        ("https://purser.test", "purser.test", "https://purser.test"),
        ("https://purser.test:443/", "purser.test", "https://purser.test"),
        ("https://purser.test:8443", "purser.test", "https://purser.test:8443"),
        ("http://127.0.0.1:8000", "localhost", "http://localhost:8000"),
        ("http://[::1]:8000", "localhost", "http://localhost:8000"),
    ],
)
def test_the_relying_party_is_the_public_url(app: Flask, base_url: str, rp_id: str, origin: str) -> None:
    change_settings(app, base_url=base_url)  # type: ignore[arg-type]
    assert challenges.relying_party() == challenges.RelyingParty(rp_id, origin)


def test_raising_a_limit_is_confirmed_by_a_passkey(ada: OwnerWithDevice) -> None:
    path = f"{ada.page}/wallets/{ada.agent['wallet']['id']}/limits"
    form = ada.browser.get(path)
    assert "data-passkey=" not in form.text
    asked = ada.browser.send(form, path, per_tx_limit_usd="500")
    assert asked.status_code == 403
    ada.device.counter += 1
    signed = ada.device.sign(challenge_of(asked, path, per_tx_limit_usd="500"))
    assert ada.browser.send(asked, path, per_tx_limit_usd="500", passkey=signed).status_code == 303


def test_a_signature_confirms_the_values_of_its_form_only(ada: OwnerWithDevice) -> None:
    path = f"{ada.page}/wallets/{ada.agent['wallet']['id']}/limits"
    typed = {"per_tx_limit_usd": "500", "allowed_domains": "shop.example\r\nother.example"}
    asked = ada.browser.send(ada.browser.get(path), path, **typed)
    ada.device.counter += 1
    signed = ada.device.sign(challenge_of(asked, path, **typed))
    token = forms_of(asked)[path]["passkey_token"]
    for others in ({"per_tx_limit_usd": "5000"}, {"allowed_domains": ""}, {"daily_limit_usd": ""}):
        refused = ada.browser.send(asked, path, passkey=signed, **{**typed, **others})
        assert (refused.status_code, "not accepted" in refused.text) == (403, True)
    # Nor does it, or one over the bare challenge of the page, confirm another form.
    keys, other = ada.browser.get(f"{ada.page}/keys"), f"{ada.page}/keys/rotate"
    bare = ada.device.sign(prompt_of(asked, path)["challenge"])
    for one in (signed, bare):
        assert ada.browser.send(keys, other, passkey=one, passkey_token=token).status_code == 403
    assert ada.browser.send(asked, path, passkey=signed, **typed).status_code == 303


@pytest.mark.usefixtures("ada")
def test_used_challenges_are_deleted_after_they_expired() -> None:
    later = clock.now() + timedelta(days=1, minutes=1)
    with unit_of_work() as session:
        assert session.query(UsedPasskeyChallenge).count() == 1
    assert personal_data.prune("used_passkey_challenges", later) == 1
    with unit_of_work() as session:
        assert session.query(UsedPasskeyChallenge).count() == 0


def test_the_last_passkey_stays_while_there_is_no_recovery_code(ada: OwnerWithDevice) -> None:
    path, second = f"{ada.page}/passkeys", SoftwareAuthenticator(ORIGIN, "purser.test")
    with unit_of_work() as session:
        session.execute(delete(OwnerCode))
    assert second.add_to(ada.browser, ada.page, name="Laptop").status_code == 303
    assert ada.browser.send(ada.browser.get(path), f"{path}/remove").status_code == 303
    refused = ada.browser.send(ada.browser.get(path), f"{path}/remove")
    assert (refused.status_code, "Make recovery codes first" in refused.text) == (409, True)
    assert "You have one passkey." in ada.browser.get(path).text
