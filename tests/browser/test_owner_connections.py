"""Connecting an application in a real browser: from its own site, on a phone, with scripts and without."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from flask import Flask
from playwright.sync_api import Page, expect

from app.core.chains import ChainName
from app.extensions import db
from tests.support.applications import make_app, settings_for
from tests.support.audits import audit
from tests.support.looks import PHONE, assert_good, navigation
from tests.support.oauth import Application
from tests.support.owner_world import World, served
from tests.support.owners import person
from tests.support.upstreams import Exchange, misbehaving_upstream

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def world(_sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    path = tmp_path_factory.mktemp("connections") / "owner.sqlite"
    shutil.copy(_sqlite_template, path)

    def build(chains: dict[ChainName, Any]) -> Flask:
        return make_app(settings_for(f"sqlite:///{path}", base_url="https://purser.test"), chains=chains)

    with served(build) as running:
        yield running
    audit(running.app)
    with running.app.app_context():
        db.engine.dispose()


@pytest.fixture
def site(world: World) -> Iterator[Application]:
    """An application with a site of its own: localhost is another site than 127.0.0.1."""
    with misbehaving_upstream() as upstream, world.app.app_context():
        origin = upstream.url.replace("127.0.0.1", "localhost")
        application = Application(world.app, redirect_uri=f"{origin}/callback")
        application.register()
        start = world.url + application.authorization(resource="https://purser.test/mcp")
        pages = {"/": f'<a href="{start.replace("&", "&amp;")}">Connect</a>', "/callback": "<h1>Back</h1>"}

        def behave(exchange: Exchange) -> None:
            shown = pages.get(urlsplit(exchange.asked.target).path, "")
            text = f"<!doctype html><html lang=en><title>Site</title>{shown}"
            exchange.answer(text.encode(), 200, ("Content-Type", "text/html"))

        upstream.behave = behave
        application.origin = origin
        yield application


def owner_key_of(world: World, made: dict[str, Any]) -> str:
    with world.app.app_context():
        someone = person(world.app)
        answer = someone.client.post("/v1/device/claim", json={"code": made["claimCode"]})
    key: str = answer.get_json()["ownerKey"]
    return key


def open_from(page: Page, site: Application) -> None:
    page.goto(f"{site.origin}/")
    with navigation(page):
        page.get_by_role("link", name="Connect").click()
    expect(page.get_by_role("heading", name="Connect an application")).to_be_visible()


def assert_connected(page: Page, site: Application) -> None:
    assert page.url.startswith(f"{site.redirect_uri}?")
    expect(page.get_by_role("heading", name="Back")).to_be_visible()
    sent = parse_qs(urlsplit(page.url).query)
    assert (sent["state"], sent["iss"]) == (["s1"], ["https://purser.test"])
    assert site.exchange(sent["code"][0], resource="https://purser.test/mcp").status_code == 200
    assert site.call_tool("get_usage").status_code == 200


@pytest.mark.parametrize("script", [True, False], ids=["scripts", "no scripts"])
def test_an_owner_signs_in_and_connects_an_application(
    world: World, open_page: Callable[..., Page], axe: str, site: Application, *, script: bool
) -> None:
    made = world.register(name="Ada’s research assistant")
    key = owner_key_of(world, made)
    page = open_page(script=script, width=PHONE)
    open_from(page, site)
    assert page.get_by_text("a program on this computer").is_visible()
    if script:
        assert_good(page, axe, "connect-1-start")
    with navigation(page):
        page.get_by_role("link", name="Continue").click()
    page.get_by_label("Owner key").fill(key)
    with navigation(page):
        page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("heading", name="What may it do?")).to_be_visible()
    for name in ("Pay from the wallet", "Call models"):
        page.get_by_label(name).uncheck()
    page.get_by_label("Budget in dollars").fill("ten")
    with navigation(page):
        page.get_by_role("button", name="Allow").click()
    assert page.get_by_role("alert").is_visible()
    assert not page.get_by_label("Call models").is_checked()
    if script:
        assert_good(page, axe, "connect-2-consent")
    page.get_by_label("Budget in dollars").fill("12.50")
    page.get_by_label("Ends after").select_option("One week")
    with navigation(page):
        page.get_by_role("button", name="Allow").click()
    assert_connected(page, site)
    assert site.tokens["scope"] == "wallet:read catalog"
    # The cookie of the session is not sent from another site, but after the page of this one.
    open_from(page, site)
    with navigation(page):
        page.get_by_role("link", name="Continue").click()
    with navigation(page):
        page.get_by_role("button", name="Deny").click()
    assert parse_qs(urlsplit(page.url).query)["error"] == ["access_denied"]
    page.goto(f"{world.url}/owner/agents/{made['agentId']}")
    with navigation(page):
        page.get_by_role("link", name="Connections").click()
    assert page.get_by_text("$12.50 of $12.50 left").is_visible()
    if script:
        assert_good(page, axe, "connections")
    with navigation(page):
        page.get_by_role("button", name="End the connection").click()
    assert page.get_by_text("its access stopped immediately").is_visible()
    assert site.call_tool("get_usage").status_code == 401


@pytest.mark.parametrize("script", [True, False], ids=["scripts", "no scripts"])
def test_a_person_without_an_agent_makes_one(
    open_page: Callable[..., Page], axe: str, site: Application, *, script: bool
) -> None:
    page = open_page(script=script, width=PHONE)
    open_from(page, site)
    with navigation(page):
        page.get_by_role("button", name="Create an agent").click()
    assert (page.locator("#owner-key").text_content() or "").startswith("ok_")
    if script:
        assert_good(page, axe, "connect-new-agent")
    with navigation(page):
        page.get_by_role("link", name="Continue").click()
    with navigation(page):
        page.get_by_role("button", name="Allow").click()
    assert_connected(page, site)


def test_a_window_that_an_application_opened_can_answer_it(
    world: World, open_page: Callable[..., Page], site: Application
) -> None:
    key = owner_key_of(world, world.register(name="In a window"))
    page = open_page(width=PHONE)
    page.goto(f"{site.origin}/")
    with page.expect_popup() as opened:
        page.evaluate("window.open(document.querySelector('a').href, 'login', 'popup,width=400,height=700')")
    window = opened.value
    with navigation(window):
        window.get_by_role("link", name="Continue").click()
    window.get_by_label("Owner key").fill(key)
    with navigation(window):
        window.get_by_role("button", name="Sign in", exact=True).click()
    with navigation(window):
        window.get_by_role("button", name="Allow").click()
    assert_connected(window, site)
    assert window.evaluate("window.opener !== null")


def test_an_owner_connects_a_program_by_its_code(
    world: World, open_page: Callable[..., Page], axe: str, site: Application
) -> None:
    key = owner_key_of(world, world.register(name="For a terminal"))
    asked = world.app.test_client().post(
        "/oauth/device_authorization", data={"client_id": site.client_id, "scope": "wallet:read"}
    )
    page = open_page(width=PHONE)
    page.goto(f"{world.url}/oauth/device")
    page.get_by_label("Code").fill("BCDF-BCDF")
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    assert page.get_by_role("alert").is_visible()
    assert_good(page, axe, "connect-device")
    page.get_by_label("Code").fill(asked.get_json()["user_code"])
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    with navigation(page):
        page.get_by_role("link", name="Continue").click()
    page.get_by_label("Owner key").fill(key)
    with navigation(page):
        page.get_by_role("button", name="Sign in", exact=True).click()
    with navigation(page):
        page.get_by_role("button", name="Allow").click()
    assert page.get_by_role("heading", name="Connected").is_visible()
    assert_good(page, axe, "connect-device-done")
