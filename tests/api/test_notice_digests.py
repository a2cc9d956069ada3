"""Digests: whatever is asked of an owner, a mailbox and a browser get few messages, and every notice is in one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from email import message_from_string

import pytest
import time_machine
from flask import Flask

from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.events import outbox, targets
from app.events.outbox import EventType
from app.events.queues import mailbox_of
from app.events.targets import Audience, Subscriber
from tests.support.agents import Agent, register
from tests.support.loopback_http import Reply
from tests.support.notices import Browser, Mailbox, notices_app
from tests.support.webhooks import deliver, receiver

ADDRESS = "ada@home.example.org"


@pytest.fixture
def app(build_app: Callable[..., Flask], each_database_url: str, mailbox: Mailbox) -> Flask:
    return notices_app(build_app, each_database_url, mailbox)


def owner_of(agent: Agent) -> Subscriber:
    return Subscriber(Audience.OWNER, agent.id)


def ask(agent: Agent, count: int = 1, object_id: str | None = None) -> list[str]:
    ids = [new_id() for _ in range(count)]
    for event_id in ids:
        with unit_of_work() as session:
            outbox.record(
                session, EventType.APPROVAL_REQUESTED, agent_id=agent.id, object_id=object_id or event_id,
                data={"value_usd": "5"}, event_id=event_id,
            )  # fmt: skip
    return ids


def texts(mailbox: Mailbox) -> list[str]:
    found = []
    for _, raw in mailbox.received:
        payload = message_from_string(raw).get_payload(decode=True)
        assert isinstance(payload, bytes)
        found.append(payload.decode())
    return found


def later(minutes: float) -> time_machine.travel:
    return time_machine.travel(clock.now() + timedelta(minutes=minutes), tick=True)


def test_a_hundred_requests_are_three_mails_and_all_are_in_the_next_ones(agent: Agent, mailbox: Mailbox) -> None:
    targets.add_email(owner_of(agent), ADDRESS, types=["approval.*"])
    ids = []
    for _ in range(10):
        ids += ask(agent, 10)
        deliver()
    assert len(mailbox.received) == 3
    with later(11):
        deliver()
    assert len(mailbox.received) == 4
    found = texts(mailbox)
    assert "70 notices have waited for this message: 70 approval.requested." in found[3]
    assert sum(text.count("approval.requested at ") for text in found) == 100
    for each in ids[:20]:
        assert sum(each in text for text in found) == 1


def test_the_first_notice_is_sent_immediately_and_alone(agent: Agent, mailbox: Mailbox) -> None:
    targets.add_email(owner_of(agent), ADDRESS, types=["approval.*"])
    [event_id] = ask(agent)
    deliver()
    [(_, raw)] = mailbox.received
    assert f"<{event_id}@service.example>" in raw
    assert "Subject: Purser: approval.requested" in raw


def test_events_of_one_object_are_in_one_message_in_their_order(agent: Agent, mailbox: Mailbox) -> None:
    targets.add_email(owner_of(agent), ADDRESS, types=["approval.*"])
    ids = ask(agent, 3, object_id="one")
    deliver()
    [text] = texts(mailbox)
    places = [text.index(each) for each in ids]
    assert places == sorted(places)


def test_agents_that_share_a_mailbox_share_its_messages(agent: Agent, mailbox: Mailbox) -> None:
    others = [agent, *(register(agent.client) for _ in range(4))]
    for number, each in enumerate(others):
        targets.add_email(owner_of(each), f"ada+{number}@home.example.org", types=["approval.*"])
        ask(each)
    deliver()
    assert len(mailbox.received) == 3
    with later(11):
        deliver()
    assert len(mailbox.received) == 5
    assert {recipients[0] for recipients, _ in mailbox.received} == {
        f"ada+{number}@home.example.org" for number in range(5)
    }


def test_a_refused_message_is_not_counted_and_loses_nothing(agent: Agent, mailbox: Mailbox) -> None:
    mailbox.refuses = True
    targets.add_email(owner_of(agent), ADDRESS, types=["approval.*"])
    ids = ask(agent, 4)
    for minutes in (0, 1, 3, 8):
        with later(minutes):
            deliver()
    mailbox.refuses = False
    with later(60):
        deliver()
    [text] = texts(mailbox)
    assert all(each in text for each in ids)


def test_a_browser_gets_few_messages_that_say_how_many_wait(agent: Agent) -> None:
    browser = Browser()
    with receiver(lambda _asked: Reply(b"", 201)) as push_service:
        targets.add_browser(owner_of(agent), **browser.subscription(push_service.url), types=["approval.*"])
        for count in (1, 1, 1, 7, 30):
            ask(agent, count)
            deliver()
        assert len(push_service.requests) == 3
        with later(11):
            deliver()
        last = browser.decrypt(push_service.requests[3].body)
    assert (last["type"], last["data"]) == ("notices", {"message": "37 approval.requested", "count": 37})


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("Ada+news@Home.example.org", "ada@home.example.org"),
        ("a.d.a@gmail.com", "ada@gmail.com"),
        ("ADA+x+y@googlemail.com", "ada@gmail.com"),
        ("a.da@home.example.org", "a.da@home.example.org"),
        ("+x@home.example.org", "+x@home.example.org"),
        ("ada@home.example.org.", "ada@home.example.org"),
    ],
)
def test_spellings_of_a_mailbox_are_counted_as_one(address: str, expected: str) -> None:
    assert mailbox_of(address) == expected
