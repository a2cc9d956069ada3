"""The page of an owner's notices: addresses are confirmed first, and no one else's page is reachable."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import time_machine
from flask import Flask

from app.adapters.smtp import SmtpMailer
from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.pagination import PageRequest
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import delivery_log, feed, outbox, targets
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber
from tests.support.agents import Agent, register
from tests.support.loopback_http import Reply
from tests.support.notices import Browser, Mailbox, new_push_key, running_mailbox
from tests.support.owners import Owner, person
from tests.support.webhooks import deliver, receiver

SENDER, ADDRESS = "purser@service.example", "ada@home.example.org"
LINK = re.compile(r"http://purser\.test(/owner/agents/\S+/notices/email/\S+)")


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with running_mailbox() as box:
        yield box


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox) -> Flask:
    return build_app(
        sqlite_url,
        settings={"web_push_key": new_push_key()},
        public_upstream=HttpUpstream(connect_seconds=1, read_seconds=5),
        mailer=SmtpMailer(f"smtp://127.0.0.1:{mailbox.port}", sender=SENDER),
    )


@dataclass(frozen=True, slots=True)
class Home:
    """An agent, and its owner, who is signed in."""

    agent: Agent
    owner: Owner
    mailbox: Mailbox

    @property
    def page(self) -> str:
        return f"/owner/agents/{self.agent.id}/notices"

    def request_link(self, address: str = ADDRESS) -> str:
        """Enter an address, and return the path of the link that arrives."""
        answer = self.owner.send(self.owner.get(self.page), f"{self.page}/email", email=address)
        assert answer.status_code == 303, answer.text
        found = LINK.search(self.mailbox.received[-1][1].replace("=\r\n", "").replace("=3D", "="))
        assert found, self.mailbox.received[-1]
        return found[1]

    def confirm(self, path: str) -> int:
        return self.owner.send(self.owner.get(path), path).status_code

    def listed(self) -> list[str]:
        found = targets.list_of(Subscriber(Audience.OWNER, self.agent.id), PageRequest(10, 0))
        return [each.url for each in found.items]


def home_of(app: Flask, mailbox: Mailbox) -> Home:
    agent, owner = register(app.test_client()), person(app)
    owner.claim(agent.post("/v1/agents/claim-code").get_json())
    return Home(agent, owner, mailbox)


@pytest.fixture
def home(app: Flask, mailbox: Mailbox) -> Iterator[Home]:
    with app.app_context():
        yield home_of(app, mailbox)


def test_an_address_gets_notices_once_it_is_confirmed(home: Home) -> None:
    path = home.request_link()
    assert home.listed() == []
    [(recipients, message)] = home.mailbox.received
    assert recipients == [ADDRESS]
    assert home.agent.id in message
    assert "Demo" not in message
    assert ADDRESS in home.owner.get(path).text
    assert home.listed() == []
    assert [home.confirm(path), home.confirm(path)] == [303, 303]
    assert home.listed() == [f"mailto:{ADDRESS}"]
    with unit_of_work() as session:
        outbox.record(
            session, EventType.APPROVAL_REQUESTED, agent_id=home.agent.id, object_id="a", data={"value_usd": "12.5"}
        )  # fmt: skip
    deliver()
    assert "value_usd: 12.5" in home.mailbox.received[-1][1]
    with read_only_unit() as session:
        [notice] = delivery_log.to_owners(session, EventType.APPROVAL_REQUESTED, ["a"])["a"]
    assert (notice.kind, notice.status) == ("email", "delivered")
    assert "last notice accepted" in home.owner.get(home.page).text


@pytest.mark.parametrize("change", ["expired", "forged", "another agent's"])
def test_a_link_that_is_not_valid_adds_nothing(app: Flask, home: Home, change: str) -> None:
    path = home.request_link()
    late = timedelta(hours=2 if change == "expired" else 0)
    if change == "forged":
        path = path[:-3] + "abc"
    if change == "another agent's":
        other = home_of(app, home.mailbox)
        path = path.replace(home.agent.id, other.agent.id)
        home = other
    with time_machine.travel(clock.now() + late, tick=True):
        opened = home.owner.get(path)
        sent = home.owner.client.post(
            path, data={"csrf_token": re.findall(r'csrf_token" value="([^"]+)', opened.text)[0]}
        )
    assert (opened.status_code, sent.status_code) == (400, 400)
    assert home.listed() == []


def test_an_address_is_not_flooded_with_links(app: Flask, home: Home) -> None:
    other = home_of(app, home.mailbox)
    for each in (home, home, other):
        each.request_link()
    for each in (home, other):
        refused = each.owner.send(each.owner.get(each.page), f"{each.page}/email", email=ADDRESS.upper())
        assert refused.status_code == 429
    assert len(home.mailbox.received) == 3


@pytest.mark.parametrize("typed", ["", "ada", "ada@home.example.org, bob@home.example.org", "a@b.org\r\nBcc: x@y.org"])
def test_what_is_no_address_gets_no_message(home: Home, typed: str) -> None:
    refused = home.owner.send(home.owner.get(home.page), f"{home.page}/email", email=typed)
    assert refused.status_code == 400
    assert home.mailbox.received == []


def test_a_mail_server_that_refuses_the_address_is_reported(home: Home) -> None:
    home.mailbox.refuses = True
    refused = home.owner.send(home.owner.get(home.page), f"{home.page}/email", email=ADDRESS)
    assert refused.status_code == 503
    assert "could not be sent" in refused.text


def test_a_browser_and_a_webhook_are_added_tested_and_removed(home: Home) -> None:
    browser = Browser()
    with receiver(lambda _asked: Reply(b"", 201)) as push_service, receiver() as hooks:
        add = f"{home.page}/browser"
        for _ in range(2):
            answer = home.owner.send(
                home.owner.get(home.page), add, **browser.subscription(push_service.url), name="Phone"
            )
            assert answer.status_code == 303, answer.text
        secret = home.owner.send(home.owner.get(home.page), f"{home.page}/webhook", url=hooks.url).text
        assert "whsec_" in secret
        assert "whsec_" not in home.owner.get(home.page).text
        assert home.listed() == [push_service.url, hooks.url]
        ids = re.findall(r'name="target_id" value="([^"]+)"', home.owner.get(home.page).text)
        for target_id in dict.fromkeys(ids):
            home.owner.send(home.owner.get(home.page), f"{home.page}/test", target_id=target_id)
        deliver()
        assert browser.decrypt(push_service.requests[0].body)["type"] == "webhook.test"
        assert hooks.types == ["webhook.test"]
        assert home.owner.get(home.page).text.count("last notice accepted") == 2
    for target_id in dict.fromkeys(ids):
        home.owner.send(home.owner.get(home.page), f"{home.page}/remove", target_id=target_id)
    assert home.listed() == []


def test_a_subscription_that_is_not_one_is_refused(
    build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox
) -> None:
    app = build_app(sqlite_url, settings={"web_push_key": new_push_key(), "allow_private_upstreams": False})
    with app.app_context():
        home = home_of(app, mailbox)
        for changed in (
            {"endpoint": "http://169.254.169.254/x"},
            {"endpoint": "https://10.0.0.1/x"},
            {"endpoint": ""},
            {"p256dh": "AAAA"},
            {"auth": "!"},
        ):
            sent = {**Browser().subscription("https://push.example.org/x"), **changed}
            refused = home.owner.send(home.owner.get(home.page), f"{home.page}/browser", **sent)
            assert refused.status_code == 400, (changed, refused.text)
            assert home.listed() == [], changed


def test_only_the_owner_sees_and_changes_the_targets(app: Flask, home: Home) -> None:
    home.confirm(home.request_link())
    other = home_of(app, home.mailbox)
    assert other.owner.get(home.page).status_code == 404
    [target_id] = set(re.findall(r'name="target_id" value="([^"]+)"', home.owner.get(home.page).text))
    token = re.findall(r'csrf_token" value="([^"]+)', other.owner.get(other.page).text)[0]
    for action in ("test", "remove"):
        answer = other.owner.client.post(f"{other.page}/{action}", data={"csrf_token": token, "target_id": target_id})
        assert answer.status_code == 404
    assert home.listed() == [f"mailto:{ADDRESS}"]
    assert person(app).get(home.page).status_code == 303


def test_a_service_without_mail_or_push_says_so(
    build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox
) -> None:
    app = build_app(sqlite_url)
    with app.app_context():
        home = home_of(app, mailbox)
        text = home.owner.get(home.page).text
    assert "This service sends no email." in text
    assert "This service does not notify browsers." in text


def test_the_overview_reports_notices_that_did_not_arrive(home: Home) -> None:
    overview = home.page.removesuffix("/notices")
    with receiver(lambda _asked: Reply(b"", 500)) as hooks:
        home.owner.send(home.owner.get(home.page), f"{home.page}/webhook", url=hooks.url)
        home.agent.controls(daily_limit_usd=700)
        assert "did not reach you" not in home.owner.get(overview).text
        deliver()
    assert "1 notice did not reach you this week." in home.owner.get(overview).text


def test_the_recent_notices_are_sentences(home: Home) -> None:
    home.agent.controls(daily_limit_usd=700)
    feed.number_all()
    page = home.owner.get(home.page).text
    assert "The agent loosened its limits" in page
    assert "controls.changed" not in page


def test_tests_are_limited(home: Home) -> None:
    home.confirm(home.request_link())
    [target_id] = set(re.findall(r'name="target_id" value="([^"]+)"', home.owner.get(home.page).text))
    page = home.owner.get(home.page)
    answers = [home.owner.send(page, f"{home.page}/test", target_id=target_id).status_code for _ in range(21)]
    assert answers == [303] * 20 + [429]
