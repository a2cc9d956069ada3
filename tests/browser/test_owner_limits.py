"""The address book and the switches of the limits in a browser: by keyboard, without scripts, in either direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.test_owner_pages import claim, world
from tests.support.looks import PHONE, assert_good, navigation
from tests.support.owner_world import World
from tests.support.screenshots import FRIEND, LONG_NAME, LOOK_ALIKE, RIGHT_TO_LEFT

pytestmark = pytest.mark.browser
__all__ = ["world"]


@pytest.fixture
def made(world: World) -> dict[str, Any]:
    agent = world.register_long_ago(name=LONG_NAME)
    world.add_month_of_history(agent)
    world.add_transaction(agent, to_address=FRIEND, cost_nanos=0)
    return agent


def test_an_address_is_named_by_keyboard_and_the_list_shows_the_name(
    world: World, made: dict[str, Any], open_page: Callable[..., Page], axe: str
) -> None:
    page = open_page()
    key = claim(page, world, made)
    book = f"{world.url}/owner/agents/{made['agentId']}/addresses"
    page.goto(book)
    assert_good(page, axe, "addresses-empty")
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type(RIGHT_TO_LEFT)
    page.keyboard.press("Tab")
    page.keyboard.type(LOOK_ALIKE)
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    page.get_by_label("Your owner key").focus()
    page.keyboard.type(key)
    page.keyboard.press("Enter")
    page.get_by_role("alert").get_by_text("looks almost the same").wait_for()
    assert page.get_by_role("alert").get_by_text(FRIEND).is_visible()
    assert_good(page, axe, "addresses-look-alike")
    page.get_by_label("Address", exact=True).fill(FRIEND)
    page.get_by_label("Base", exact=True).check()
    page.get_by_label("Your owner key").fill(key)
    with navigation(page):
        page.keyboard.press("Enter")
    assert page.get_by_text("The name was saved.").is_visible()
    assert_good(page, axe, "addresses")
    page.goto(book.replace("addresses", "activity"))
    assert page.locator("a.ledger-line", has_text=RIGHT_TO_LEFT).count() == 1
    page.get_by_text("As a table").click()
    assert_good(page, axe, "activity-named")


def test_the_switches_work_without_scripts(world: World, made: dict[str, Any], open_page: Callable[..., Page]) -> None:
    page = open_page(script=False, width=PHONE)
    claim(page, world, made)
    page.goto(f"{world.url}/owner/agents/{made['agentId']}/wallets/{made['wallet']['id']}/limits")
    switch = page.get_by_role("switch", name="The first payment to each recipient")
    box = switch.bounding_box()
    assert box
    assert (box["width"], box["height"]) == (48, 28)
    assert not switch.is_checked()
    switch.focus()
    page.keyboard.press("Space")
    assert switch.is_checked()
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    assert page.get_by_role("row", name="The first payment to each recipient do not ask ask first").is_visible()
    with navigation(page):
        page.get_by_role("button", name="Save limits").click()
    assert page.get_by_text("The limits were saved.").is_visible()
    status, answer = world.call(made, "GET", f"/v1/wallets/{made['wallet']['id']}/controls")
    assert (status, answer["controls"]["approve_new_recipients"]) == (200, True)
