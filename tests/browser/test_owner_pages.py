"""The owner's pages in a real browser: with scripts and without, by keyboard, at two widths, in light and dark.

`PURSER_SCREENSHOTS=folder` keeps a picture of every state that is looked at here.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Page

from app.core import clock
from app.core.chains import ChainName
from app.extensions import db
from tests.support.applications import make_app, settings_for
from tests.support.audits import audit
from tests.support.fake_shopper import FakeShopper
from tests.support.looks import PHONE, assert_good, navigation
from tests.support.owner_world import RECIPIENT, World, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def world(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A service shared by all tests of this process; its BASE_URL is https, so cookies are as in production."""
    path = tmp_path_factory.mktemp("owner") / "owner.sqlite"
    shutil.copy(_sqlite_template, path)

    def build(chains: dict[ChainName, Any]) -> Flask:
        settings = settings_for(f"sqlite:///{path}", base_url="https://purser.test")
        return make_app(settings, chains=chains, shopper=FakeShopper())

    with served(build) as running:
        yield running
    audit(running.app)
    with running.app.app_context():
        db.engine.dispose()


def claim(page: Page, world: World, made: dict[str, Any], email: str = "") -> str:
    """Claim an agent from its link; return the owner key."""
    page.goto(f"{world.url}/device?code={made['claimCode']}")
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    if email:
        page.get_by_label("Email address").fill(email)
    with navigation(page):
        page.get_by_role("button", name="Claim agent").click()
    key = page.locator("#owner-key").text_content()
    assert key
    return key


def test_claiming_from_the_link_to_the_agents_page(world: World, open_page: Callable[..., Page], axe: str) -> None:
    made = world.register_long_ago(name="Research assistant", email="ada@example.org")
    world.add_month_of_history(made)
    page = open_page()
    page.goto(f"{world.url}/device?code={made['claimCode'].lower().replace('-', '')}")
    assert page.input_value("#code") == made["claimCode"]
    assert_good(page, axe, "claim-1-code")
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    assert page.get_by_text("Research assistant").is_visible()
    assert page.get_by_text("Claim this agent only if you started it.").is_visible()
    assert_good(page, axe, "claim-2-agent")
    page.get_by_label("Email address").fill("eve@example.org")
    with navigation(page):
        page.get_by_role("button", name="Claim agent").click()
    assert page.get_by_role("alert").is_visible()
    assert page.evaluate("document.activeElement.id") == "email"
    assert page.title().startswith("Error: ")
    assert_good(page, axe, "claim-2-wrong-email")
    page.get_by_label("Email address").fill("ada@example.org")
    with navigation(page):
        page.get_by_role("button", name="Claim agent").click()
    assert page.get_by_role("heading", name="Research assistant is yours").is_visible()
    assert page.locator(".qr").count() == 2
    api_key = page.locator("#api-key")
    assert not api_key.is_visible()
    page.get_by_text("Show API key").click()
    assert api_key.text_content() == made["apiKey"]
    assert_good(page, axe, "claim-3-claimed")
    page.get_by_role("button", name="Copy owner key").click()
    page.get_by_text("owner key copied").wait_for(state="attached")
    with navigation(page):
        page.get_by_role("button", name="Lock limits").click()
    assert page.get_by_text("The limits are locked.").is_visible()
    assert world.call(made, "PUT", f"/v1/wallets/{made['wallet']['id']}/controls", {"daily_limit_usd": 9000})[0] == 403


def test_codes_are_accepted_typed_and_pasted_in_any_form(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page()
    page.goto(f"{world.url}/device")
    page.wait_for_function("document.activeElement.id === 'code'")
    page.keyboard.type("khtm4821")
    assert page.input_value("#code") == "KHTM-4821"
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    page.keyboard.press("Backspace")
    assert page.input_value("#code") == "KHTM-"
    page.keyboard.press("Backspace")
    assert page.input_value("#code") == "KHTM"
    for pasted in (" wxyz 9876 ", "wxyz\u20139876", "WXYZ-9876"):
        page.fill("#code", pasted)
        assert page.input_value("#code") == "WXYZ-9876"
    with navigation(page):
        page.keyboard.press("Enter")
    assert page.get_by_role("alert").get_by_text("ask the agent for another one").is_visible()
    assert page.input_value("#code") == "WXYZ-9876"
    page.wait_for_function("document.activeElement.id === 'code'")
    assert_good(page, axe, "claim-1-wrong-code")


def test_claiming_and_freezing_without_scripts(world: World, open_page: Callable[..., Page]) -> None:
    made = world.register(name="No scripts")
    page = open_page(script=False, width=PHONE)
    key = claim(page, world, made)
    assert re.fullmatch(r"ok_[A-Za-z0-9_-]{43}", key)
    assert page.get_by_role("button", name="Copy").count() == 0
    page.get_by_text("Show API key").click()
    assert page.locator("#api-key").is_visible()
    with navigation(page):
        page.get_by_role("link", name="Go to agent").click()
    with navigation(page):
        page.get_by_role("button", name="Freeze agent").click()
    assert page.get_by_text("The agent is frozen.").is_visible()
    assert world.attempt_payment(made, 1) == "WALLET_FROZEN"
    with navigation(page):
        page.get_by_role("button", name="Sign out").click()
    assert page.get_by_role("heading", name="Sign in").is_visible()


def test_an_agent_claimed_by_another_person_is_refused(world: World, open_page: Callable[..., Page], axe: str) -> None:
    made = world.register(name="Taken")
    world.call(made, "POST", "/v1/wallets", {"name": "Travel"})
    zero = world.call(made, "POST", "/v1/wallets", {"name": "Trading"})[1]["id"]
    world.call(made, "PUT", f"/v1/wallets/{zero}/controls", {"daily_limit_usd": 0})
    ada = open_page()
    key = claim(ada, world, made, "ada@example.org")
    page = open_page()
    page.goto(f"{world.url}/device?code={made['claimCode']}")
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    assert_good(page, axe, "claim-2-claimed-before")
    page.get_by_label("Email address").fill("eve@example.org")
    with navigation(page):
        page.get_by_role("button", name="Show owner key again").click()
    assert page.get_by_role("alert").get_by_text("contact the operator").is_visible()
    assert_good(page, axe, "claim-1-claimed-by-another")
    for browser, answer in ((page, "#error"), (ada, "#owner-key")):
        browser.goto(f"{world.url}/device?code={made['claimCode']}")
        with navigation(browser):
            browser.get_by_role("button", name="Continue").click()
        browser.get_by_label("Email address").fill("ada@example.org")
        with navigation(browser):
            browser.get_by_role("button", name="Show owner key again").click()
        assert browser.locator(answer).is_visible()
    assert ada.locator("#owner-key").text_content() == key
    with navigation(ada):
        ada.get_by_role("link", name="Go to agent").click()
    assert ada.get_by_text("This agent's claim was repeated.").is_visible()
    assert_good(ada, axe, "agent-claim-repeated")


def test_the_owners_page_by_keyboard_and_its_limits_enforced(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    made = world.register_long_ago(name="Research assistant")
    world.add_month_of_history(made)
    key = claim(open_page(), world, made, "ada@example.org")
    page = open_page()
    page.goto(f"{world.url}/owner")
    assert_good(page, axe, "sign-in")
    page.locator("#owner-key").fill("ok_" + "A" * 43)
    page.keyboard.press("Enter")
    page.get_by_role("alert").wait_for()
    assert_good(page, axe, "sign-in-wrong")
    page.locator("#owner-key").fill(key)
    with navigation(page):
        page.keyboard.press("Enter")
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}  # type: ignore[typeddict-item]
    session = cookies["__Host-purser_owner"]
    assert (session["secure"], session["httpOnly"], session["sameSite"]) == (True, True, "Strict")  # type: ignore[typeddict-item]
    assert page.get_by_role("cell", name="1,284.50 USDC").is_visible()
    assert page.get_by_text("$50.00").first.is_visible()
    assert_good(page, axe, "agent")
    for summary in page.locator("summary").all():
        summary.click()
    assert_good(page, axe, "agent-all-open")
    page.goto(page.url)
    with navigation(page):
        page.get_by_role("link", name="Change limits").click()
    assert_good(page, axe, "limits")
    page.get_by_label("Per payment").fill("5")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="What this changes").wait_for()
    assert page.get_by_role("row", name="Per payment $50.00 $5.00").is_visible()
    assert world.attempt_payment(made, 6) == "NOT_IMPLEMENTED"
    assert_good(page, axe, "limits-review")
    page.get_by_role("button", name="Save limits").focus()
    page.keyboard.press("Enter")
    page.get_by_text("The limits were saved.").wait_for()
    assert world.attempt_payment(made, 6) == "PER_TX_LIMIT_EXCEEDED"
    page.get_by_role("link", name="Change limits").click()
    page.get_by_label("Per payment").fill("25")
    page.get_by_label("Allowed addresses").fill("not an address")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("alert").wait_for()
    assert_good(page, axe, "limits-unreadable")
    page.get_by_label("Allowed addresses").fill("")
    page.get_by_role("button", name="Continue").click()
    page.get_by_role("button", name="Save limits").click()
    page.get_by_role("alert").get_by_text("Enter your owner key").wait_for()
    assert_good(page, axe, "limits-needs-key")
    page.get_by_label("Your owner key").fill(key)
    page.get_by_role("button", name="Save limits").click()
    page.get_by_text("The limits were saved.").wait_for()
    assert world.attempt_payment(made, 6) == "NOT_IMPLEMENTED"


def test_the_activity_from_the_list_to_a_payment_and_a_purchase(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    made = world.register_long_ago(name="Research assistant")
    world.add_month_of_history(made)
    late = (clock.now() - timedelta(days=5)).replace(hour=23, minute=30)
    world.add_transaction(made, created_at=late, amount_units=1_230_000)
    world.call(made, "PUT", f"/v1/wallets/{made['wallet']['id']}/controls", {"daily_limit_usd": 500})
    purchase = world.buy(made, coupon_code="SPRING20")
    page = open_page(zone="Asia/Kolkata")
    claim(page, world, made)
    page.goto(f"{world.url}/owner/agents/{made['agentId']}")
    with navigation(page):
        page.get_by_role("link", name="All activity").click()
    assert page.get_by_role("heading", name="Activity", exact=True).is_visible()
    assert page.locator("section", has_text="1.23 USDC").locator("h2").text_content() == (
        late + timedelta(days=1)
    ).strftime("%-d %B %Y")
    assert "05:00" in page.locator("li", has_text="1.23 USDC").inner_text()
    assert_good(page, axe, "activity")
    page.get_by_text("Filter and search").click()
    page.get_by_label("Status").select_option("Failed")
    with navigation(page):
        page.get_by_role("button", name="Show", exact=True).click()
    assert page.locator("a.ledger-line").count() == 1
    assert_good(page, axe, "activity-filtered")
    with navigation(page):
        page.locator("a.ledger-line").click()
    assert page.get_by_text("enough of the chain's native token").first.is_visible()
    assert_good(page, axe, "transaction-failed")
    page.goto(f"{world.url}/owner/agents/{made['agentId']}/purchases/{purchase}")
    assert page.get_by_role("heading", name="Pen at shop.example").is_visible()
    assert_good(page, axe, "purchase")


def test_the_activity_without_scripts_is_in_utc(world: World, open_page: Callable[..., Page]) -> None:
    made = world.register_long_ago(name="Plain")
    late = (clock.now() - timedelta(days=5)).replace(hour=23, minute=30)
    world.add_transaction(made, created_at=late)
    page = open_page(script=False, width=PHONE, zone="Asia/Kolkata")
    claim(page, world, made)
    page.goto(f"{world.url}/owner/agents/{made['agentId']}/activity")
    assert page.locator("h2.day").text_content() == late.strftime("%-d %B %Y")
    assert "23:30 UTC" in page.locator("a.ledger-line").inner_text()
    with navigation(page):
        page.locator("a.ledger-line").click()
    assert page.get_by_role("link", name="View in explorer").is_visible()


def test_what_waits_is_decided_on_the_overview_by_keyboard_alone(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    name = "مساعد البحث والمشتريات اليومية للفريق كله"
    made = world.register_long_ago(name=name)
    world.add_month_of_history(made)
    key = claim(open_page(), world, made)
    controls = f"/v1/wallets/{made['wallet']['id']}/controls"
    for dollars in (400, 500):
        world.call(made, "PUT", controls, {"daily_limit_usd": dollars, "approve_new_recipients": True})
    world.add_transaction(made, to_address=RECIPIENT.replace("C0FF", "C0DE"))
    approved = world.ask(made, 20, to=f"0x51a5{'3' * 32}5d9f", note="Quickly, please.")
    refused = world.ask(made, 18)
    world.number_events()
    page = open_page(width=PHONE)
    page.goto(f"{world.url}/owner")
    page.locator("#owner-key").fill(key)
    with navigation(page):
        page.keyboard.press("Enter")
    assert page.get_by_role("link", name="Approvals 2 waiting").is_visible()
    assert page.get_by_text("$38.00 of it is held").is_visible()
    assert_good(page, axe, "overview-waiting")
    # Without a pointer, and without hiding: the last tab scrolls into view when it is reached.
    tabs = page.get_by_role("navigation", name="Agent").get_by_role("link")
    tabs.last.focus()
    assert tabs.count() == 7
    assert page.evaluate("document.activeElement.getBoundingClientRect().right") <= PHONE
    heights = page.evaluate("""[...document.querySelectorAll('button, .button')].filter(each => each.checkVisibility())
        .map(each => [each.textContent, each.getBoundingClientRect().height])""")
    assert [(text, height) for text, height in heights if height < 43.9] == []
    page.locator(".waiting summary").first.focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    page.keyboard.type(key)
    assert_good(page, axe, "overview-approving")
    with navigation(page):
        page.keyboard.press("Enter")
    page.get_by_text("You approved it.").wait_for()
    assert page.url.endswith(approved)
    page.goto(f"{world.url}/owner/agents/{made['agentId']}/approvals")
    assert_good(page, axe, "approvals")
    page.goto(f"{world.url}/owner/agents/{made['agentId']}/approvals/{refused}")
    assert_good(page, axe, "approval-waiting")
    page.get_by_role("button", name="Refuse", exact=True).focus()
    with navigation(page):
        page.keyboard.press("Enter")
    page.get_by_text("You refused it. Nothing was paid.").wait_for()
    assert_good(page, axe, "approval-refused")


def test_an_owner_decides_on_the_overview_without_scripts(world: World, open_page: Callable[..., Page]) -> None:
    made = world.register(name="Plain and forty characters long, as many")
    page = open_page(script=False, width=PHONE)
    key = claim(page, world, made)
    world.ask(made, 20)
    overview = f"{world.url}/owner/agents/{made['agentId']}"
    page.goto(overview)
    assert not page.get_by_label("Your owner key").first.is_visible()
    page.locator(".waiting summary").click()
    page.locator(".waiting").get_by_label("Your owner key").fill(key)
    with navigation(page):
        page.get_by_role("button", name="Approve $20.00").click()
    assert page.get_by_text("You approved it.").is_visible()
    world.ask(made, 5)
    page.goto(overview)
    with navigation(page):
        page.locator(".waiting").get_by_role("button", name="Refuse").click()
    assert page.get_by_text("You refused it.").is_visible()


def test_a_wrong_address_shows_a_page_with_a_way_back(world: World, open_page: Callable[..., Page], axe: str) -> None:
    page = open_page()
    page.goto(f"{world.url}/nothing")
    assert page.get_by_role("heading", name="Page not found").is_visible()
    assert_good(page, axe, "not-found")
    with navigation(page):
        page.get_by_role("link", name="Start page").click()
    assert_good(page, axe, "front-page")


def test_a_freeze_binds_the_api_until_the_owner_key_undoes_it(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    made, page = world.register(name="Research assistant"), open_page()
    world.call(made, "POST", "/v1/wallets", {"name": "Travel"})
    key = claim(page, world, made, "ada@example.org")
    page.goto(f"{world.url}/owner")
    with navigation(page):
        page.get_by_role("button", name="Freeze agent").click()
    assert world.attempt_payment(made, 1) == "WALLET_FROZEN"
    page.goto(page.url)
    assert_good(page, axe, "agent-frozen")
    page.locator("#unfreeze-key").fill("wrong")
    with navigation(page):
        page.get_by_role("button", name="Unfreeze").click()
    assert_good(page, axe, "prove")
    page.get_by_label("Your owner key").fill(key)
    with navigation(page):
        page.get_by_role("button", name="Unfreeze").click()
    assert world.attempt_payment(made, 1) == "NOT_IMPLEMENTED"
    with navigation(page):
        page.get_by_role("link", name="Travel").click()
    assert page.get_by_text("No limits are set.").is_visible()
    assert_good(page, axe, "agent-second-wallet")
    limits = {"name": "Research " * 5, "limit_usd": 5, "window": "week"}
    assert world.call(made, "POST", "/v1/keys", limits)[0] == 201
    with navigation(page):
        page.get_by_role("link", name="Keys", exact=True).click()
    for summary in page.locator("summary").all():
        summary.click()
    assert_good(page, axe, "keys")
    with navigation(page):
        page.get_by_role("button", name="Revoke Research").click()
    assert page.get_by_text("Keys with a budget").count() == 0
    for summary in page.locator("summary").all():
        summary.click()
    page.locator("#rotate-key").fill(key)
    with navigation(page):
        page.get_by_role("button", name="Create new API key").click()
    assert (page.locator("#api-key").text_content() or "") != made["apiKey"]
    assert_good(page, axe, "keys-rotated")


def test_a_session_ended_in_another_browser_gives_no_access(
    world: World, open_page: Callable[..., Page], axe: str
) -> None:
    made, page, elsewhere = world.register(), open_page(), open_page()
    key = claim(page, world, made)
    elsewhere.goto(f"{world.url}/owner")
    elsewhere.locator("#owner-key").fill(key)
    with navigation(elsewhere):
        elsewhere.get_by_role("button", name="Sign in").click()
    with navigation(page):
        page.get_by_role("link", name="Sessions").click()
    assert_good(page, axe, "sessions")
    with navigation(page):
        page.get_by_role("button", name="Sign out all other sessions").click()
    elsewhere.goto(f"{world.url}/owner")
    assert elsewhere.get_by_role("heading", name="Sign in").is_visible()


def test_several_agents_and_an_unreachable_chain(world: World, open_page: Callable[..., Page], axe: str) -> None:
    first, second, page = (world.register(name="Research assistant"), world.register(name="Shopper"), open_page())
    claim(page, world, first, "ada@example.org")
    page.goto(f"{world.url}/owner")
    with navigation(page):
        page.get_by_role("link", name="Add agent").click()
    assert_good(page, axe, "add")
    claim(page, world, second, "ada@example.org")
    page.goto(f"{world.url}/owner")
    assert page.get_by_role("link", name="Shopper").is_visible()
    assert_good(page, axe, "agents")
    world.chains[ChainName.SOLANA].unreachable = True
    page.goto(f"{world.url}/owner/agents/{second['agentId']}")
    assert page.get_by_text("Solana could not be read").is_visible()
    assert_good(page, axe, "agent-chain-unreachable")
    world.chains[ChainName.SOLANA].unreachable = False
    page.goto(f"{world.url}/owner/agents/unknown")
    assert_good(page, axe, "nothing-here")


@pytest.mark.parametrize("script", [True, False])
def test_an_agent_is_handed_over_and_recovered_with_codes(
    world: World, open_page: Callable[..., Page], axe: str, *, script: bool
) -> None:
    made, ada, bob = world.register(name="Research assistant"), open_page(), open_page(script=script, width=PHONE)
    key = claim(ada, world, made)
    assert len((ada.locator("#recovery-codes").text_content() or "").split()) == 8
    assert_good(ada, axe, "claimed-with-codes")
    ada.goto(f"{world.url}/owner/agents/{made['agentId']}/keys")
    ada.get_by_text("Make a code for the next owner").click()
    ada.locator("#offer-key").fill(key)
    with navigation(ada):
        ada.get_by_role("button", name="Make a code").click()
    code = ada.locator("#handover-code").text_content() or ""
    assert_good(ada, axe, "keys-offered")
    ada.goto(f"{world.url}/owner")
    assert ada.get_by_text("This agent is offered to another person.").is_visible()
    assert_good(ada, axe, "agent-offered")

    bob.goto(f"{world.url}/owner/sign-in")
    with navigation(bob):
        bob.get_by_role("link", name="Use a recovery code").click()
    look = assert_good if script else lambda *_: None
    look(bob, axe, "recover")
    bob.get_by_label("Code").fill("no code")
    with navigation(bob):
        bob.get_by_role("button", name="Continue").click()
    assert bob.get_by_role("alert").is_visible()
    look(bob, axe, "recover-wrong")
    bob.get_by_label("Code").fill(code.lower())
    with navigation(bob):
        bob.get_by_role("button", name="Continue").click()
    look(bob, axe, "recover-use")
    assert bob.locator("#owner-key").text_content() != key
    with navigation(bob):
        bob.get_by_role("button", name="take over").click()
    assert bob.get_by_role("heading", name="Research assistant is yours").is_visible()
    look(bob, axe, "recovered")
    own = (bob.locator("#recovery-codes").text_content() or "").split()
    ada.goto(f"{world.url}/owner")
    assert ada.get_by_role("heading", name="Sign in").is_visible()

    elsewhere = open_page()
    elsewhere.goto(f"{world.url}/owner/recover")
    elsewhere.get_by_label("Code").fill(own[0])
    with navigation(elsewhere):
        elsewhere.get_by_role("button", name="Continue").click()
    assert_good(elsewhere, axe, "recover-own")
    with navigation(elsewhere):
        elsewhere.get_by_role("button", name="recover").click()
    assert elsewhere.get_by_text("Your other recovery codes stay valid.").is_visible()
    elsewhere.goto(f"{world.url}/owner/agents/{made['agentId']}/keys")
    assert elsewhere.get_by_text("7 of them are left.").is_visible()
