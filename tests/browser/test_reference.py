"""The reference at `/docs` in a real browser: on a phone and a desktop, in light and dark, without scripts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from flask import Flask
from playwright.sync_api import Page, expect
from werkzeug.serving import make_server

from tests.support.looks import PHONE, assert_good, navigation

pytestmark = pytest.mark.browser

OpenPage = Callable[..., Page]


@pytest.fixture
def url(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, build_app(sqlite_url), threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    "path",
    [
        "/docs", "/docs/errors", "/docs?q=limit", "/docs/wallets", "/docs/shopping/buy",
        "/docs/openrouter/openrouter_get_models_endpoints_by_author_and_slug",
    ],
)  # fmt: skip
def test_pages_look_good_everywhere(open_page: OpenPage, axe: str, url: str, path: str) -> None:
    page = open_page()
    page.goto(url + path)
    page.evaluate("document.querySelectorAll('main details').forEach(each => each.open = true)")
    assert_good(page, axe, f"reference{path.replace('/', '-').replace('?', '-')}", hides_by_width=True)


def test_a_person_without_scripts_finds_an_operation_and_its_samples_on_a_phone(open_page: OpenPage, url: str) -> None:
    page = open_page(script=False, width=PHONE)
    page.goto(f"{url}/docs")
    navigation_list = page.get_by_role("navigation", name="Documentation")
    expect(navigation_list).to_be_hidden()
    page.get_by_role("button", name="Contents").click()
    with navigation(page):
        navigation_list.get_by_role("link", name="Wallets", exact=True).click()
    page.get_by_role("searchbox").fill("transfer tokens")
    with navigation(page):
        page.keyboard.press("Enter")
    with navigation(page):
        page.get_by_role("main").get_by_role("link", name="Transfer", exact=True).click()
    curl, python = page.get_by_label("Sample in curl"), page.get_by_label("Sample in python")
    expect(curl).to_be_visible()
    expect(python).to_be_hidden()
    page.get_by_text("Python", exact=True).click()
    expect(python).to_be_visible()
    expect(python).to_contain_text("purser.transfer(")
    expect(curl).to_be_hidden()
    with navigation(page):
        page.get_by_role("link", name="DAILY_LIMIT_EXCEEDED").click()
    expect(page.get_by_role("heading", name="DAILY_LIMIT_EXCEEDED")).to_be_in_viewport()


def test_the_language_is_chosen_by_keyboard_and_kept_on_the_next_page(open_page: OpenPage, url: str) -> None:
    page = open_page()
    page.goto(f"{url}/docs/wallets/transfer")
    page.get_by_role("radio", name="curl").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_label("Sample in typescript")).to_be_visible()
    page.goto(f"{url}/docs/wallets/swap")
    expect(page.get_by_role("radio", name="TypeScript")).to_be_checked()
    expect(page.get_by_label("Sample in typescript")).to_contain_text("await purser.swap({")
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()


def test_the_current_operation_is_visible_in_the_navigation_and_a_sample_is_copied(
    open_page: OpenPage, url: str
) -> None:
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{url}/docs/tavily/tavily_search")
    expect(
        page.get_by_role("navigation", name="Documentation").get_by_role("link", name="Search POST")
    ).to_be_in_viewport()
    page.get_by_label("Sample in curl").hover()
    page.locator(".code.curl").get_by_role("button", name="Copy").click()
    expect(page.locator(".code.curl").get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").startswith("curl -X POST http://")
