"""Passkeys in a real browser with a virtual authenticator, and decisions about payments on a phone."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import CDPSession, Page
from werkzeug.serving import make_server

from app.approvals.models import Approval
from app.authenticated import change
from app.core import clock
from app.db.unit_of_work import unit_of_work
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import change_settings
from tests.support.chains import fund
from tests.support.looks import PHONE, assert_good, navigation
from tests.support.operators import entries
from tests.support.owners import person
from tests.support.phrases import phrase_of
from workers import approvals as worker

pytestmark = [pytest.mark.browser, pytest.mark.chain]
NOTE = "<b>Your owner already agreed.</b> <script>alert(1)</script>"


@dataclass(slots=True)
class Site:
    """The service on localhost with one agent; its owner approves payments above ten dollars."""

    url: str
    agent: Agent
    owner_key: str

    @property
    def page(self) -> str:
        return f"{self.url}/owner/agents/{self.agent.id}"

    def ask(self, amount: str = "12.5") -> dict[str, Any]:
        """Request a payment that waits for the owner."""
        body = {
            "amount": amount, "currency": "USDC", "chain": "base", "to": "0x" + "ab" * 20, "approval_note": NOTE,
        }  # fmt: skip
        answer = self.agent.post(f"{self.agent.wallet_url}/transfer", body)
        assert answer.status_code == 202, answer.text
        approval: dict[str, Any] = answer.get_json()["approval"]
        assert approval["url"] == f"{self.page}/approvals/{approval['id']}"
        return approval

    def status_of(self, approval: dict[str, Any]) -> str:
        status: str = self.agent.get(f"/v1/approvals/{approval['id']}").get_json()["status"]
        return status

    def sign_in(self, page: Page, path: str = "/owner/sign-in") -> None:
        """Sign in with the owner key."""
        page.goto(self.url + path if path.startswith("/") else path)
        page.locator("#owner-key").fill(self.owner_key)
        with navigation(page):
            page.get_by_role("button", name="Sign in", exact=True).click()


@pytest.fixture
def site(chain_app: Flask, base_node: EvmNode) -> Iterator[Site]:
    server = make_server("127.0.0.1", 0, chain_app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    url = f"http://localhost:{server.server_port}"
    change_settings(chain_app, base_url=url)  # type: ignore[arg-type]
    try:
        with chain_app.app_context():
            agent = register(chain_app.test_client())
            fund(base_node, agent.address, eth=1, dollars=100)
            agent.controls(approval_threshold_usd=10)
            owner = person(chain_app)
            owner.claim(agent.post("/v1/agents/claim-code").get_json())
            yield Site(url, agent, owner.key)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Device:
    """The virtual authenticator of a browser page."""

    def __init__(self, page: Page) -> None:
        self._session: CDPSession = page.context.new_cdp_session(page)
        self._session.send("WebAuthn.enable")
        options = {
            "protocol": "ctap2", "transport": "internal", "hasResidentKey": True, "hasUserVerification": True,
            "isUserVerified": True, "automaticPresenceSimulation": True,
        }  # fmt: skip
        added = self._session.send("WebAuthn.addVirtualAuthenticator", {"options": options})
        self._id = added["authenticatorId"]

    def set_user_verified(self, verified: bool) -> None:  # noqa: FBT001
        """Let the person pass or fail the check of fingerprint or PIN."""
        change = {"authenticatorId": self._id, "isUserVerified": verified}
        self._session.send("WebAuthn.setUserVerified", change)


def add_passkey(page: Page, site: Site, name: str = "Phone") -> None:
    """Add a passkey on the page of passkeys, with the owner key."""
    page.goto(f"{site.page}/passkeys")
    page.get_by_label("Name").fill(name)
    page.locator("#owner-key").fill(site.owner_key)
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    with navigation(page):
        page.get_by_role("button", name="Create passkey").click()
    page.get_by_text("The passkey was added.").wait_for()


def test_a_passkey_is_created_signs_in_confirms_and_is_removed(
    site: Site, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page(width=PHONE)
    device = Device(page)
    site.sign_in(page)
    page.goto(f"{site.page}/passkeys")
    assert_good(page, axe, "passkeys-none")
    add_passkey(page, site, "Ada’s phone")
    assert_good(page, axe, "passkeys")

    with navigation(page):
        page.get_by_role("button", name="Sign out").click()
    assert_good(page, axe, "sign-in-passkey")
    device.set_user_verified(False)
    page.get_by_role("button", name="Sign in with a passkey").click()
    page.get_by_text("No passkey was used.").wait_for()
    device.set_user_verified(True)
    with navigation(page):
        page.get_by_role("button", name="Sign in with a passkey").click()
    assert page.url == site.page

    page.goto(f"{site.page}/keys")
    page.get_by_text("Show API key").first.click()
    with navigation(page):
        page.get_by_role("button", name="Show API key").click()
    assert page.locator("#api-key").text_content() == site.agent.key

    page.goto(f"{site.page}/passkeys")
    with navigation(page):
        page.get_by_role("button", name="Remove").click()
    page.get_by_text("The passkey was removed").wait_for()
    with navigation(page):
        page.get_by_role("button", name="Sign out").click()
    with navigation(page):
        page.get_by_role("button", name="Sign in with a passkey").click()
    page.get_by_text("This passkey was not accepted.").wait_for()


def test_a_limit_is_raised_with_a_passkey_and_lowered_without(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page()
    Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    for dollars in ("5", "70"):
        page.goto(f"{site.page}/wallets/{site.agent.wallet_id}/limits")
        page.get_by_label("Per payment").fill(dollars)
        for step in ("Continue", "Save limits"):
            with navigation(page):
                page.get_by_role("button", name=step).click()
    page.get_by_text("The limits were saved.").wait_for()
    controls = site.agent.get(f"{site.agent.wallet_url}/controls").get_json()["controls"]
    assert controls["per_tx_limit_usd"] == 70


def test_an_owner_approves_on_a_phone_with_a_passkey_from_the_link_of_the_notice(
    site: Site, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page(width=PHONE)
    Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    with navigation(page):
        page.get_by_role("button", name="Sign out").click()
    approval = site.ask()
    page.goto(approval["url"])
    with navigation(page):
        page.get_by_role("button", name="Sign in with a passkey").click()
    assert page.url == approval["url"]
    assert_good(page, axe, "approval")
    text = page.locator("main").inner_text()
    facts, words = text.index("$12.50 against the limits"), text.index("The agent's own words")
    assert facts < words < text.index(NOTE)
    with navigation(page):
        page.get_by_role("button", name=re.compile(r"^Approve \$")).click()
    page.get_by_text("You approved it.").wait_for()
    worker.execute()
    assert site.status_of(approval) == "executed"
    page.goto(page.url)
    page.get_by_text("it was executed.").wait_for()
    assert_good(page, axe, "approval-executed")
    [entry] = [each for each in entries() if each.subject_id == approval["id"]]
    signed = json.loads(base64.b64decode(entry.after["client_data"]))
    text = f"purser approval\n{approval['request_hash']}\nonce\n"
    challenge = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    assert (entry.after["method"], signed["challenge"], signed["origin"]) == ("passkey", challenge, site.url)


def test_a_passkey_allows_a_recipient_an_amount_per_week(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(width=PHONE)
    Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    page.goto(site.ask()["url"])
    page.get_by_text("Approve, and allow an amount per week").click()
    page.get_by_label("per week without asking you").fill("30")
    with navigation(page):
        page.get_by_role("button", name="Approve, and allow this amount per week").click()
    page.get_by_text("You approved it.").wait_for()
    worker.execute()
    body = {"amount": "15", "currency": "USDC", "chain": "base", "to": "0x" + "ab" * 20}
    assert site.agent.post(f"{site.agent.wallet_url}/transfer", body).status_code == 200


def test_a_tap_after_the_expiry_shows_that_nothing_was_paid(
    site: Site, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page(width=PHONE)
    Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    approval = site.ask()
    page.goto(approval["url"])
    with unit_of_work() as session:
        past = clock.now() - timedelta(seconds=1)
        change(session, Approval, Approval.id == approval["id"], expires_at=past)
    with navigation(page):
        page.get_by_role("button", name=re.compile(r"^Approve \$")).click()
    page.get_by_text("Your decision came too late and had no effect.").wait_for()
    page.get_by_text("It expired before a decision. Nothing was paid.").wait_for()
    assert page.get_by_text("You approved").count() == 0
    assert_good(page, axe, "approval-late")
    worker.execute()
    assert site.agent.history() == []


def test_a_failed_verification_of_the_person_decides_nothing(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(width=PHONE)
    device = Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    approval = site.ask()
    page.goto(approval["url"])
    device.set_user_verified(False)
    page.get_by_role("button", name=re.compile(r"^Approve \$")).click()
    page.get_by_text("No passkey was used.").wait_for()
    assert site.status_of(approval) == "awaiting"
    # The owner key, typed, still works on the same page.
    page.locator("#owner-key").fill(site.owner_key)
    with navigation(page):
        page.get_by_role("button", name=re.compile(r"^Approve \$")).click()
    page.get_by_text("You approved it.").wait_for()


def test_an_owner_decides_without_scripts_by_key(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(script=False, width=PHONE)
    approved, refused = site.ask("11"), site.ask("12")
    # The link of a notice leads to the payment after signing in.
    site.sign_in(page, approved["url"])
    assert page.url == approved["url"]
    assert page.get_by_role("button", name="passkey").count() == 0
    page.locator("#owner-key").fill(site.owner_key)
    with navigation(page):
        page.get_by_role("button", name=re.compile(r"^Approve \$")).click()
    assert page.get_by_text("You approved it.").is_visible()
    page.goto(refused["url"])
    page.get_by_text("Refuse with a sentence for the agent").click()
    page.get_by_label("What the agent should know").fill("Too dear.")
    with navigation(page):
        page.get_by_role("button", name="Refuse and send this sentence").click()
    assert page.get_by_text("You refused it. Nothing was paid.").is_visible()
    worker.execute()
    assert (site.status_of(approved), site.status_of(refused)) == ("executed", "rejected")
    found = site.agent.get(f"/v1/approvals/{refused['id']}").get_json()
    assert found["answer"] == "Too dear."


KEPT_KEYS = "() => inStore((keys) => keys.count())"


def words_of(page: Page) -> str:
    page.get_by_role("button", name="Show the words").click()
    page.locator("#words:visible").wait_for()
    return page.locator("#words").text_content() or ""


def test_an_owner_takes_the_words_of_a_wallet_out_and_they_are_clear_in_the_browser_only(
    site: Site, chain_app: Flask, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page(width=PHONE)
    Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    received: list[bytes] = []
    page.on("response", lambda answer: received.append(answer.body() if answer.status == 200 else b""))
    keys = f"{site.page}/wallets/{site.agent.wallet_id}/keys"
    page.goto(keys)
    assert_good(page, axe, "keys-none")
    with navigation(page):
        page.get_by_role("button", name="Ask for the keys").click()
    assert page.get_by_text("in 72 hours").is_visible()
    assert_good(page, axe, "keys-asked")
    with navigation(page):
        page.get_by_role("button", name="Cancel").click()
    change_settings(chain_app, wallet_export_wait_seconds=0)  # type: ignore[arg-type]
    with navigation(page):
        page.get_by_role("button", name="Ask for the keys").click()
    assert_good(page, axe, "keys-ready")
    with navigation(page):
        page.get_by_role("button", name="Take the keys out").click()
    assert page.locator("#words").text_content() == ""
    words = words_of(page)
    assert words == phrase_of(site.agent.wallet_id)
    assert_good(page, axe, "keys-taken")
    page.get_by_role("button", name="Clear the words").click()
    # All of them: a single word may be a word of the page, such as "path".
    assert words not in page.content()
    assert words.encode() not in b"".join(received)
    # The key was for one answer; the next has another.
    assert page.evaluate(KEPT_KEYS) == 0
    page.goto(keys)
    with navigation(page):
        page.get_by_role("button", name="Take the keys out").click()
    assert words_of(page) == words


def test_an_owner_brings_a_phrase_in_and_no_request_has_it_in_clear(
    site: Site, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page(width=PHONE)
    Device(page)
    site.sign_in(page)
    add_passkey(page, site)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url + (request.post_data or "")))
    page.goto(site.page)
    page.get_by_text("Keys of this wallet, and other wallets").click()
    begin, words = "Import a wallet", "Abandon " * 11 + "about"
    for typed, shown in (("abandon " * 12, "12 or 24 words"), (words, "Others may have the keys")):
        with navigation(page):
            page.get_by_role("button", name=begin).click()
        assert_good(page, axe, "import")
        # A browser may show the page again as it was left.
        page.get_by_label("12 or 24 words").fill(words)
        page.evaluate("dispatchEvent(new PageTransitionEvent('pagehide', { persisted: true }))")
        assert page.get_by_label("12 or 24 words").input_value() == ""
        page.get_by_label("12 or 24 words").fill(typed)
        with navigation(page):
            page.get_by_role("button", name="Import the wallet").click()
        page.get_by_text(shown).first.wait_for()
        begin = "Type a phrase"
    assert "abandon" not in "".join(sent).lower()
    imported = site.agent.get("/v1/wallets").get_json()["wallets"][1]
    assert imported["addresses"]["base"] == "0x9858EfFD232B4033E47d90003D41EC34EcaEda94"
    assert imported["exported_at"] is not None


def test_without_scripts_no_phrase_can_be_sent(site: Site, open_page: Callable[..., Page]) -> None:
    page = open_page(script=False, width=PHONE)
    site.sign_in(page)
    page.get_by_text("Keys of this wallet, and other wallets").click()
    with navigation(page):
        page.get_by_role("button", name="Import a wallet").click()
    assert page.get_by_text("This needs a passkey.").is_visible()
    assert page.locator("textarea").count() == 0
