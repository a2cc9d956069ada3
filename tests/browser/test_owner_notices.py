"""Notices in a real browser: it subscribes, and its worker shows what is pushed."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from playwright.sync_api import Page, expect
from werkzeug.serving import make_server

from app.core.pagination import PageRequest
from app.events import targets
from app.events.targets import Audience, Subscriber
from tests.support.agents import Agent, register
from tests.support.applications import change_settings
from tests.support.looks import PHONE, assert_good, navigation
from tests.support.notices import Browser, new_push_key
from tests.support.owners import person
from tests.support.waiting import wait_until

pytestmark = pytest.mark.browser


@dataclass(slots=True)
class Site:
    """The service on localhost, with an agent and its owner."""

    url: str
    agent: Agent
    owner_key: str

    def open_notices(self, page: Page) -> None:
        page.goto(f"{self.url}/owner/sign-in?next=/owner/agents/{self.agent.id}/notices")
        page.locator("#owner-key").fill(self.owner_key)
        with navigation(page):
            page.get_by_role("button", name="Sign in", exact=True).click()


@pytest.fixture
def site(build_app: Callable[..., Flask], sqlite_url: str) -> Iterator[Site]:
    app = build_app(sqlite_url, settings={"web_push_key": new_push_key()})
    server = make_server("127.0.0.1", 0, app, threaded=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    url = f"http://localhost:{server.server_port}"
    change_settings(app, base_url=url)  # type: ignore[arg-type]
    try:
        with app.app_context():
            agent, owner = register(app.test_client()), person(app)
            owner.claim(agent.post("/v1/agents/claim-code").get_json())
            yield Site(url, agent, owner.key)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_browser_subscribes_and_shows_what_is_pushed(site: Site, open_page: Callable[..., Page], axe: str) -> None:
    page = open_page(width=PHONE)
    page.context.grant_permissions(["notifications"], origin=site.url)
    # There is no push service here: only the subscription itself is replaced.
    made = Browser().subscription("https://push.example.org/one")
    page.add_init_script(
        f"""
        const made = {json.dumps(made)};
        const bytes = (text) => Uint8Array.from(
          atob(text.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));
        PushManager.prototype.subscribe = async (options) => {{
          if (!options.userVisibleOnly || !options.applicationServerKey) throw new Error("options");
          return {{ endpoint: made.endpoint, getKey: (name) => bytes(made[name]).buffer }};
        }};
        """
    )
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    site.open_notices(page)
    assert_good(page, axe, "notices")
    page.get_by_label("Name").fill("Phone")
    session = page.context.new_cdp_session(page)
    registered: list[str] = []
    session.on(
        "ServiceWorker.workerRegistrationUpdated",
        lambda event: registered.extend(each["registrationId"] for each in event["registrations"]),
    )
    session.send("ServiceWorker.enable")
    with navigation(page):
        page.get_by_role("button", name="Notify this browser").click()
    expect(page.get_by_role("status").first).to_contain_text("You are notified there")
    assert problems == []
    [target] = targets.list_of(Subscriber(Audience.OWNER, site.agent.id), PageRequest(10, 0)).items
    assert (target.url, target.description) == (made["endpoint"], "Phone")
    event: dict[str, Any] = {
        "id": "e1", "type": "approval.requested",
        "data": {"value_usd": "12.5", "recipient": "0xabc", "url": f"{site.url}/owner/agents"},
    }  # fmt: skip
    # A browser without a desktop shows no notification: what its worker asks for is recorded.
    [worker] = page.context.service_workers
    worker.evaluate(
        """() => {
          self.shown = [];
          self.registration.showNotification = async (title, options) => { self.shown.push([title, options]); };
        }"""
    )
    session.send(
        "ServiceWorker.deliverPushMessage",
        {"origin": site.url, "registrationId": registered[-1], "data": json.dumps(event)},
    )
    [[title, options]] = wait_until(lambda: worker.evaluate("() => self.shown"))
    assert (title, options["body"]) == ("A payment waits for your decision", "12.5 USD to 0xabc")
    assert options["data"] == {"url": event["data"]["url"]}
