"""Notices to owners by e-mail and web push: delivered, encrypted, recorded when they fail, and to no one else."""

from __future__ import annotations

import base64
import json
import smtplib
from collections.abc import Callable
from typing import Any

import pytest
from flask import Flask
from py_vapid import Vapid02
from sqlalchemy import select, update

from app.adapters.smtp import SmtpMailer
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import InvalidInput
from app.events import outbox, targets
from app.events.models import EventDelivery, EventTarget
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber, TargetKind
from app.idempotency.service import Claim
from app.ports.errors import PortError, Rejected, Unreachable
from tests.support.agents import Agent, register
from tests.support.loopback_http import Reply
from tests.support.notices import SENDER, Browser, Mailbox, new_push_key, notices_app
from tests.support.servers import free_port
from tests.support.webhooks import add_webhook, deliver, receiver

OWNER = "owner@home.example"


@pytest.fixture
def push_key() -> str:
    return new_push_key()


@pytest.fixture
def app(build_app: Callable[..., Flask], sqlite_url: str, mailbox: Mailbox, push_key: str) -> Flask:
    return notices_app(build_app, sqlite_url, mailbox, push_key)


def owner_of(agent: Agent) -> Subscriber:
    return Subscriber(Audience.OWNER, agent.id)


def record(agent: Agent, **data: Any) -> str:
    event_id = new_id()
    with unit_of_work() as session:
        outbox.record(
            session, EventType.WALLET_FROZEN, agent_id=agent.id, object_id=agent.id, data=data, event_id=event_id
        )  # fmt: skip
    return event_id


def notices(event_id: str) -> list[tuple[str, object, object]]:
    with read_only_unit() as session:
        found = session.scalars(select(EventDelivery).where(EventDelivery.event_id == event_id)).all()
    return [(each.status, each.attempts[-1]["status_code"], each.attempts[-1]["error"]) for each in found]


def test_an_owner_gets_an_email_about_the_own_agent_alone(agent: Agent, mailbox: Mailbox) -> None:
    targets.add_email(owner_of(agent), OWNER, types=["wallet.*"])
    record(register(agent.client))
    event_id = record(agent, wallet_id="w", note="one\nBcc: other@x.example\n\ntwo")
    deliver()
    [(recipients, text)] = mailbox.received
    assert recipients == [OWNER]
    assert f"<{event_id}@service.example>" in text
    assert "Subject: Purser: wallet.frozen" in text
    # What an agent wrote is one line of the body.
    assert "note: one Bcc: other@x.example two" in text
    assert notices(event_id) == [("delivered", 200, None)]


def test_a_refused_email_is_recorded_and_not_lost(agent: Agent, mailbox: Mailbox) -> None:
    mailbox.refuses = True
    targets.add_email(owner_of(agent), OWNER, types=["*"])
    event_id = record(agent)
    deliver()
    assert notices(event_id) == [("pending", None, "recipient_refused")]
    assert mailbox.received == []


def test_no_mail_server_is_an_attempt_that_failed(build_app: Callable[..., Flask], sqlite_url: str) -> None:
    app = build_app(sqlite_url)
    with app.app_context():
        agent = register(app.test_client())
        targets.add_email(owner_of(agent), OWNER, types=["*"])
        event_id = record(agent)
        deliver()
        assert notices(event_id) == [("pending", None, "no_mail_server")]


@pytest.mark.parametrize(("server", "expected"), [("refuses", Rejected), ("away", Unreachable)])
def test_what_a_mail_server_does_is_one_of_three_outcomes(
    mailbox: Mailbox, server: str, expected: type[PortError]
) -> None:
    mailbox.refuses = True
    mailer = SmtpMailer(f"smtp://127.0.0.1:{free_port() if server == 'away' else mailbox.port}", sender=SENDER)
    with pytest.raises(expected):
        mailer.send(OWNER, subject="x", text="x", message_id="x")


def test_a_server_elsewhere_without_starttls_gets_nothing_and_its_connection_is_closed(
    mailbox: Mailbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = []

    class Recorded(smtplib.SMTP):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            connections.append(self)

    monkeypatch.setattr(smtplib, "SMTP", Recorded)
    monkeypatch.setattr("app.adapters.smtp.is_loopback", lambda _host: False)
    mailer = SmtpMailer(f"smtp://someone:secret@127.0.0.1:{mailbox.port}", sender=SENDER)
    with pytest.raises(Unreachable):
        mailer.send(OWNER, subject="x", text="x", message_id="x")
    assert [each.sock for each in connections] == [None]
    assert mailbox.received == []


def test_an_event_that_cannot_be_sent_at_all_is_a_failed_attempt(agent: Agent) -> None:
    with receiver() as target:
        made = targets.add(
            owner_of(agent),
            TargetKind.WEBHOOK,
            url=target.url,
            types=["*"],
            description="",
            secret="x",
            claim=Claim.none(),
        )
        event_id = record(agent)
        deliver()
        assert notices(event_id) == [("pending", None, "internal_error")]
        assert targets.get(owner_of(agent), made.id).status == "enabled"


def test_a_secret_that_cannot_be_opened_does_not_pause_its_target(agent: Agent) -> None:
    with receiver() as target:
        made = add_webhook(agent, target.url)
        with unit_of_work() as session:
            session.execute(update(EventTarget).values(sealed="altered"))
        event_id = record(agent)
        deliver()
        assert notices(event_id) == [("pending", None, "internal_error")]
        with read_only_unit() as session:
            found = session.get_one(EventTarget, made["id"])
        assert (found.unanswered, target.requests) == (0, [])


def test_a_browser_decrypts_the_event_and_the_service_signs_for_the_push_service(agent: Agent, push_key: str) -> None:
    browser = Browser()
    with receiver(lambda _asked: Reply(b"", 201)) as push_service:
        targets.add_browser(owner_of(agent), **browser.subscription(push_service.url), types=["wallet.*"])
        event_id = record(agent, wallet_id="w")
        deliver()
        [asked] = push_service.requests
        origin = push_service.server.url
    event = browser.decrypt(asked.body)
    assert (event["id"], event["type"], event["data"]) == (event_id, "wallet.frozen", {"wallet_id": "w"})
    assert b"wallet.frozen" not in asked.body
    headers = {name.lower(): value for name, value in asked.headers.items()}
    assert (headers["content-encoding"], headers["ttl"]) == ("aes128gcm", "86400")
    assert Vapid02.verify(headers["authorization"])
    token = headers["authorization"].partition("t=")[2].split(".")[1]
    assert json.loads(base64.urlsafe_b64decode(token + "=="))["aud"] == origin
    assert notices(event_id) == [("delivered", 201, None)]
    assert push_key not in str(headers)


def test_a_subscription_that_ended_is_disabled(agent: Agent) -> None:
    with receiver(lambda _asked: Reply(b"", 404)) as push_service:
        made = targets.add_browser(owner_of(agent), **Browser().subscription(push_service.url), types=["wallet.*"])
        record(agent)
        deliver()
    assert targets.get(owner_of(agent), made.id).status == "disabled"
    [notice] = agent.get("/v1/events", types="webhook.disabled").get_json()["events"]
    assert notice["data"]["url"] is None
    assert push_service.url not in str(agent.get("/v1/events").get_json())


def test_an_event_that_is_too_large_for_a_push_message_is_sent_without_its_data(agent: Agent) -> None:
    browser = Browser()
    with receiver(lambda _asked: Reply(b"", 201)) as push_service:
        targets.add_browser(owner_of(agent), **browser.subscription(push_service.url), types=["*"])
        event_id = record(agent, text="x" * 5000)
        deliver()
        [asked] = push_service.requests
    assert len(asked.body) <= 4096
    assert (browser.decrypt(asked.body)["id"], browser.decrypt(asked.body)["data"]) == (event_id, {})


@pytest.mark.parametrize("wrong", [{"p256dh": "AAAA"}, {"auth": "AAAA"}, {"endpoint": "ftp://push.example.com"}])
def test_a_malformed_subscription_is_refused(agent: Agent, wrong: dict[str, str]) -> None:
    given = {**Browser().subscription("https://push.example.com/x"), **wrong}
    with pytest.raises(InvalidInput):
        targets.add_browser(owner_of(agent), **given, types=["*"])


def test_agents_do_not_see_the_targets_of_their_owner(agent: Agent) -> None:
    made = targets.add_email(owner_of(agent), OWNER, types=["*"])
    assert agent.get("/v1/webhooks").get_json()["pagination"]["total"] == 0
    assert agent.get(f"/v1/webhooks/{made.id}").status_code == 404
