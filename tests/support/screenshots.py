"""Pictures of every state of the owner's pages: `make screenshots`, or `python -m tests.support.screenshots limits`.

Three widths, light and dark, with and without scripts; with long names and text from right to left. They are written to
`var/screenshots`, named by state and look; an argument takes the states whose names contain it.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

from eth_utils.address import to_checksum_address
from playwright.sync_api import Browser, Page, sync_playwright

from app.core import clock
from app.extensions import db
from app.wallets.core.lifecycle import MovementStatus
from shopper.process import browser_discovery
from tests.support.applications import make_app, settings_for
from tests.support.fake_shopper import FakeShopper
from tests.support.looks import DESKTOP, PHONE, navigation
from tests.support.owner_world import RECIPIENT, World, served

TABLET = 768
FOLDER = Path("var/screenshots")
LOOKS = list(itertools.product((PHONE, TABLET, DESKTOP), ("light", "dark"), (True, False)))
LONG_NAME = "Purchasing assistant of the Berlin office"
RIGHT_TO_LEFT = "مساعد المشتريات في مكتب القاهرة"
FRIEND = str(to_checksum_address("0x51a5000000000000000000000000000000005d9f"))
LOOK_ALIKE = str(to_checksum_address("0x51a5ffff00000000000000000000000000005d9f"))

State = Callable[[Page], None]


@contextmanager
def running() -> Iterator[World]:
    """Serve the application with a new database."""
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_for(f"sqlite:///{folder}/owner.sqlite", base_url="https://purser.test")

        def build(chains: Any) -> Any:
            app = make_app(settings, chains=chains, shopper=FakeShopper())
            with app.app_context():
                db.create_all(bind_key=None)
            return app

        with served(build) as world:
            yield world
            with world.app.app_context():
                db.engine.dispose()


def people_and_agents(world: World) -> dict[str, dict[str, Any]]:
    """Register agents in the states that the pages show."""
    made = {
        "rich": world.register_long_ago(name="Research assistant", email="ada@example.org"),
        "long": world.register_long_ago(name=LONG_NAME),
        "arabic": world.register_long_ago(name=RIGHT_TO_LEFT),
        "new": world.register(name="New agent"),
    }
    for name in ("long", "rich", "arabic"):
        agent, now = made[name], clock.now()
        for days, dollars in ((22, 18), (21, 7), (17, 42), (15, 3), (11, 26), (8, 12), (5, 31), (4, 9), (2, 22)):
            paid = {"amount_units": dollars * 10**6, "cost_nanos": dollars * 10**9, "to_address": FRIEND}
            world.add_transaction(agent, created_at=now - timedelta(days=days), **paid)
        world.add_month_of_history(agent)
        world.call(agent, "POST", "/v1/wallets", {"name": LONG_NAME if name != "arabic" else RIGHT_TO_LEFT})
        limits = {"name": RIGHT_TO_LEFT if name == "arabic" else LONG_NAME, "limit_usd": 5, "window": "week"}
        for body in (limits, {"models": ["openai/*"]}):
            world.call(agent, "POST", "/v1/keys", body)
    rich = made["rich"]
    controls = {"daily_limit_usd": 500, "weekly_limit_usd": 900, "monthly_limit_usd": 2000, "per_tx_limit_usd": 60}
    controls_url = f"/v1/wallets/{rich['wallet']['id']}/controls"
    world.call(rich, "PUT", controls_url, controls)
    rich["purchase"] = world.buy(rich, coupon_code="SPRING20")
    world.call(rich, "PUT", controls_url, {**controls, "approval_threshold_usd": 15, "approve_new_recipients": True})
    rich["approval"] = world.order(rich, url="https://shop.example/p/2")["approval"]["id"]
    world.add_transaction(rich, status=MovementStatus.FAILED, error="reverted", cost_nanos=0)
    return made


def claim(page: Page, world: World, made: Mapping[str, Any], email: str = "") -> str:
    """Claim an agent; return its owner key."""
    page.goto(f"{world.url}/device?code={made['claimCode']}")
    with navigation(page):
        page.get_by_role("button", name="Continue").click()
    if email:
        page.get_by_label("Email address").fill(email)
    with navigation(page):
        page.get_by_role("button", name="Claim agent").click()
    return page.locator("#owner-key").text_content() or ""


def states(world: World, made: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, State]:
    """Return the states by name; none of them changes anything."""
    found: dict[str, State] = {}

    def goto(path: str) -> State:
        return lambda page: page.goto(world.url + path) and None

    def filled(path: str, fields: Mapping[str, str], button: str) -> State:
        def fill(page: Page) -> None:
            page.goto(world.url + path)
            for label, value in fields.items():
                page.get_by_label(label, exact=True).first.fill(value)
            page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
            with navigation(page):
                page.get_by_role("button", name=button).last.click()

        return fill

    for name, agent in made.items():
        path = f"/owner/agents/{agent['agentId']}"
        limits = f"{path}/wallets/{agent['wallet']['id']}/limits"
        pages = {
            "overview": path, "activity": f"{path}/activity", "approvals": f"{path}/approvals", "limits": limits,
            "notices": f"{path}/notices", "connections": f"{path}/connections", "keys": f"{path}/keys",
            "passkeys": f"{path}/passkeys", "addresses": f"{path}/addresses",
        }  # fmt: skip
        found |= {f"{page}-{name}": goto(where) for page, where in pages.items()}
        for preset in ("careful", "free"):
            found[f"limits-{name}-{preset}"] = goto(f"{limits}?preset={preset}")
    rich = made["rich"]
    path = f"/owner/agents/{rich['agentId']}"
    limits = f"{path}/wallets/{rich['wallet']['id']}/limits"
    found |= {
        "agents": goto("/owner/agents"), "add": goto("/owner/add"), "sessions": goto("/owner/sessions"),
        "nothing-here": goto("/owner/agents/unknown"), "claim-code": goto("/device"),
        "approval": goto(f"{path}/approvals/{rich['approval']}"),
        "purchase": goto(f"{path}/purchases/{rich['purchase']}"),
        "activity-failed": goto(f"{path}/activity?status=failed"),
        "activity-nothing": goto(f"{path}/activity?text=nothing-like-this"),
        "limits-wrong": filled(limits, {"Per payment": "ten"}, "Continue"),
        "limits-review": filled(limits, {"Per payment": "25", "Per day": "40"}, "Continue"),
        "limits-look-alike": filled(limits, {"Allowed addresses": f"{RECIPIENT}\n{LOOK_ALIKE}"}, "Continue"),
        "addresses-look-alike": lambda page: _name(page, world.url + path, LOOK_ALIKE, keys["rich"]),
        "keys-shown": filled(f"{path}/keys", {}, "Show API key"),
    }  # fmt: skip
    with world.app.app_context():
        shown = world.app.test_client().get(
            f"/v1/wallets/{rich['wallet']['id']}/transactions?limit=50", headers={"X-API-Key": rich["apiKey"]}
        )
    for each in shown.get_json()["transactions"]:
        found.setdefault(f"transaction-{each['type']}-{each['status']}", goto(f"{path}/activity/{each['id']}"))
    return found


def _name(page: Page, path: str, address: str, key: str, name: str = "Alice Example") -> None:
    page.goto(f"{path}/addresses")
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Address", exact=True).fill(address)
    page.get_by_label("Base", exact=True).check()
    page.get_by_label("Your owner key").fill(key)
    with navigation(page):
        page.get_by_role("button", name="Save name").click()


def signed_in(browser: Browser, world: World, made: Mapping[str, Any]) -> tuple[Any, dict[str, str]]:
    """Claim the agents in one browser, and name some addresses; return its cookies and the owner keys."""
    page = browser.new_page()
    keys = {name: claim(page, world, agent, agent.get("email") or "ada@example.org") for name, agent in made.items()}
    for name, label in (("rich", "Alice Example"), ("long", LONG_NAME[:40]), ("arabic", "عائشة")):
        path = f"{world.url}/owner/agents/{made[name]['agentId']}"
        _name(page, path, FRIEND, keys[name], label)
        assert page.get_by_text("The name was saved.").is_visible()
    return page.context.storage_state(), keys


def take(world: World, browser: Browser, wanted: str = "") -> int:
    """Take the pictures; return how many."""
    made = people_and_agents(world)
    state, keys = signed_in(browser, world, made)
    chosen = {name: show for name, show in states(world, made, keys).items() if wanted in name}
    FOLDER.mkdir(parents=True, exist_ok=True)
    for width, scheme, script in LOOKS:
        context = browser.new_context(
            viewport={"width": width, "height": 860}, color_scheme=scheme, java_script_enabled=script,  # type: ignore[arg-type]
            storage_state=state,
        )  # fmt: skip
        page = context.new_page()
        page.set_default_timeout(10_000)
        for name, show in chosen.items():
            show(page)
            look = f"{width}-{scheme}{'' if script else '-noscript'}"
            page.screenshot(path=FOLDER / f"{name}-{look}.png", full_page=True)
        context.close()
    return len(chosen) * len(LOOKS)


def main() -> None:
    found = browser_discovery.find_browser(os.environ.get("BROWSER_EXECUTABLE", ""))
    if found is None:
        raise SystemExit("no browser: apt install chromium-headless-shell fonts-dejavu-core, or set BROWSER_EXECUTABLE")
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as playwright, running() as world:
        browser = playwright.chromium.launch(executable_path=found, args=arguments)
        number = take(world, browser, *sys.argv[1:2])
        browser.close()
    sys.stdout.write(f"{number} pictures in {FOLDER}\n")


if __name__ == "__main__":
    main()
