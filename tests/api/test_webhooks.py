"""Webhooks: signed deliveries, in order and at least once, of the agent's own events, and to no private address."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.events import outbox
from app.events.channels import signature
from app.events.outbox import EventType
from tests.support.agents import Agent, register
from tests.support.loopback_http import Reply, unused_url
from tests.support.operators import operator as make_operator
from tests.support.webhooks import add_webhook, deliver, deliveries_of, receiver

GONE, BUSY, BROKEN = Reply(b"", 410), Reply(b"", 503, {"Retry-After": "3600"}), Reply(b"x" * 5000, 500)


@pytest.fixture
def app(build_app: Callable[..., Flask], each_database_url: str) -> Flask:
    return build_app(each_database_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=5))


def record(agent: Agent, object_id: str | None = None, event_type: EventType = EventType.PAYMENT_CONFIRMED) -> None:
    with unit_of_work() as session:
        outbox.record(session, event_type, agent_id=agent.id, object_id=object_id or new_id(), data={"number": "1"})


def later(hours: float) -> Any:
    return time_machine.travel(clock.now() + timedelta(hours=hours), tick=True)


def test_a_delivery_is_signed_and_sent_once(agent: Agent) -> None:
    with receiver() as target:
        webhook = add_webhook(agent, target.url, "payment.*")
        record(agent)
        record(agent, event_type=EventType.WALLET_FROZEN)
        deliver()
        deliver()
        [asked] = target.requests
    headers = {name.lower(): value for name, value in asked.headers.items()}
    event = json.loads(asked.body)
    assert (event["type"], event["agent_id"], event["data"]) == ("payment.confirmed", agent.id, {"number": "1"})
    assert headers["webhook-id"] == event["id"]
    expected = signature(webhook["secret"], event["id"], int(headers["webhook-timestamp"]), asked.body)
    assert headers["webhook-signature"] == expected
    [delivery] = deliveries_of(agent, webhook)
    assert (delivery["status"], delivery["tries"], delivery["event_id"]) == ("delivered", 1, event["id"])
    assert delivery["attempts"][0]["status_code"] == 204


def test_the_secret_is_shown_once_and_never_listed(agent: Agent) -> None:
    webhook = add_webhook(agent, "https://hooks.example.com/x")
    assert webhook["secret"].startswith("whsec_")
    for path in ("/v1/webhooks", f"/v1/webhooks/{webhook['id']}"):
        assert webhook["secret"] not in agent.get(path).get_data(as_text=True)


def test_a_repeated_creation_makes_one_webhook_with_one_secret(agent: Agent) -> None:
    body = {"url": "https://hooks.example.com/x", "types": ["*"]}
    first, again = (agent.post("/v1/webhooks", body, Idempotency_Key="k").get_json() for _ in range(2))
    assert first == again
    assert agent.get("/v1/webhooks").get_json()["pagination"]["total"] == 1


def test_after_a_rotation_both_secrets_sign_for_a_day(agent: Agent) -> None:
    with receiver() as target:
        webhook = add_webhook(agent, target.url)
        rotated = agent.post(f"/v1/webhooks/{webhook['id']}/rotate-secret").get_json()
        for hours in (0, 25):
            with later(hours):
                record(agent)
                deliver()
        signatures = [asked.headers["webhook-signature"].split() for asked in target.requests]
        with_both, with_new = target.requests
    of_both = [
        signature(secret, with_both.headers["webhook-id"], int(with_both.headers["webhook-timestamp"]), with_both.body)
        for secret in (rotated["secret"], webhook["secret"])
    ]
    assert signatures[0] == of_both
    assert len(signatures[1]) == 1
    assert signatures[1] == [
        signature(
            rotated["secret"], with_new.headers["webhook-id"], int(with_new.headers["webhook-timestamp"]),
            with_new.body,
        )
    ]  # fmt: skip


def test_a_failed_delivery_is_tried_again_later_with_the_same_id(agent: Agent) -> None:
    with receiver(lambda _asked: BROKEN) as target:
        webhook = add_webhook(agent, target.url)
        record(agent)
        deliver()
        deliver()
        assert len(target.requests) == 1
        [pending] = deliveries_of(agent, webhook)
        assert (pending["status"], pending["tries"]) == ("pending", 1)
        assert len(pending["attempts"][0]["answer"]) == 1024
        target.server.answer = lambda _asked: Reply(b"", 200)
        with later(0.01):
            deliver()
        assert [event["id"] for event in target.events] == [pending["event_id"]] * 2
        assert deliveries_of(agent, webhook)[0]["status"] == "delivered"


def test_events_of_one_object_arrive_in_order_even_when_the_first_fails(agent: Agent) -> None:
    one, other = new_id(), new_id()
    with receiver() as target:
        add_webhook(agent, target.url)
        target.server.answer = lambda asked: BROKEN if json.loads(asked.body)["object_id"] == one else Reply(b"")
        record(agent, one, EventType.PAYMENT_PENDING)
        record(agent, one, EventType.PAYMENT_CONFIRMED)
        record(agent, other, EventType.PAYMENT_PENDING)
        deliver()
        assert [event["object_id"] for event in target.events] == [one, other]
        target.server.answer = lambda _asked: Reply(b"")
        with later(0.01):
            deliver()
    assert [event["type"] for event in target.events if event["object_id"] == one] == [
        "payment.pending", "payment.pending", "payment.confirmed",
    ]  # fmt: skip


def test_a_target_that_asks_for_time_is_left_alone_for_it(agent: Agent) -> None:
    with receiver(lambda _asked: BUSY) as target:
        add_webhook(agent, target.url)
        record(agent)
        record(agent)
        deliver()
        assert len(target.requests) == 1
        with later(0.5):
            deliver()
        assert len(target.requests) == 1
        with later(1.5):
            deliver()
        assert len(target.requests) == 2


def test_a_target_that_is_gone_is_disabled_and_its_owner_reads_why(agent: Agent) -> None:
    with receiver(lambda _asked: GONE) as target:
        webhook = add_webhook(agent, target.url, "payment.*")
        record(agent)
        record(agent)
        deliver()
        with later(1):
            deliver()
        assert len(target.requests) == 1
    found = agent.get(f"/v1/webhooks/{webhook['id']}").get_json()
    assert (found["status"], found["status_reason"]) == ("disabled", "the target wants no more events (410 Gone)")
    [notice] = agent.get("/v1/events", types="webhook.disabled").get_json()["events"]
    assert notice["data"]["webhook_id"] == webhook["id"]


def test_a_dead_target_is_disabled_after_three_days_and_delivers_what_waited_when_enabled(agent: Agent) -> None:
    with receiver() as target:
        webhook = add_webhook(agent, target.url, "payment.*")
        agent.client.patch(f"/v1/webhooks/{webhook['id']}", json={"url": unused_url()}, headers=agent.headers())
        record(agent)
        deliver()
        with later(71):
            deliver()
            assert agent.get(f"/v1/webhooks/{webhook['id']}").get_json()["status"] == "enabled"
        with later(73):
            deliver()
            found = agent.get(f"/v1/webhooks/{webhook['id']}").get_json()
            assert (found["status"], found["status_reason"]) == (
                "disabled", "no delivery succeeded for three days",
            )  # fmt: skip
            body = {"url": target.url, "enabled": True}
            agent.client.patch(f"/v1/webhooks/{webhook['id']}", json=body, headers=agent.headers())
        with later(100):
            deliver()
        assert target.types == ["payment.confirmed"]


def test_a_test_goes_to_one_webhook_whatever_its_types(agent: Agent) -> None:
    with receiver() as target, receiver() as other:
        webhook = add_webhook(agent, target.url, "wallet.frozen")
        add_webhook(agent, other.url)
        answer = agent.post(f"/v1/webhooks/{webhook['id']}/test")
        assert answer.status_code == 202
        deliver()
        assert [(each["id"], each["type"]) for each in target.events] == [
            (answer.get_json()["event_id"], "webhook.test")
        ]
        assert other.events == []


def test_a_replay_sends_the_same_event_again_and_failed_ones_since_a_time(agent: Agent) -> None:
    with receiver() as target:
        webhook = add_webhook(agent, target.url)
        record(agent)
        deliver()
        [event] = target.events
        path = f"/v1/webhooks/{webhook['id']}/replay"
        assert agent.post(path, {"event_id": event["id"]}).get_json()["count"] == 1
        deliver()
        assert target.events == [event, event]
        assert agent.post(path, {"failed_since": "2020-01-01T00:00:00Z"}).get_json()["count"] == 0
        assert agent.post(path, {}).status_code == 400
        assert agent.post(path, {"event_id": new_id()}).status_code == 404


def test_an_event_from_before_a_webhook_can_be_replayed_to_it(agent: Agent) -> None:
    with receiver() as target:
        record(agent)
        [event] = agent.get("/v1/events").get_json()["events"]
        webhook = add_webhook(agent, target.url)
        agent.post(f"/v1/webhooks/{webhook['id']}/replay", {"event_id": event["id"]})
        deliver()
        assert target.events == [event]


def test_another_agent_neither_sees_a_webhook_nor_receives_the_events(client: FlaskClient, agent: Agent) -> None:
    other = register(client)
    with receiver() as target:
        add_webhook(other, target.url)
        webhook = add_webhook(agent, "https://hooks.example.com/x")
        record(agent)
        [event] = agent.get("/v1/events").get_json()["events"]
        deliver()
        assert target.events == []
        own = other.get("/v1/webhooks").get_json()["webhooks"][0]
        assert other.post(f"/v1/webhooks/{own['id']}/replay", {"event_id": event["id"]}).status_code == 404
    path = f"/v1/webhooks/{webhook['id']}"
    assert other.get(path).status_code == 404
    assert other.delete(path).status_code == 404
    assert other.get(f"{path}/deliveries").status_code == 404
    for action in ("test", "rotate-secret", "replay"):
        assert other.post(f"{path}/{action}", {"event_id": event["id"]}).status_code == 404


def test_operators_receive_the_events_of_all_agents(client: FlaskClient, agent: Agent) -> None:
    operator = make_operator(client)
    with receiver() as target:
        made = operator.post("/webhooks", {"url": target.url, "types": ["payment.*"]})
        assert made.status_code == 201
        record(agent)
        deliver()
        assert [event["agent_id"] for event in target.events] == [agent.id]
    assert agent.get(f"/v1/webhooks/{made.get_json()['id']}").status_code == 404
    assert [each["agent_id"] for each in operator.get("/events").get_json()["events"]] == [agent.id]


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:80/", "https://[", "ftp://hooks.example.com/", "https://user@hooks.example.com/", "x", ""]
)
def test_urls_that_cannot_be_delivered_to_are_refused(
    build_app: Callable[..., Flask], sqlite_url: str, url: str
) -> None:
    client = build_app(sqlite_url, settings={"allow_private_upstreams": "0"}).test_client()
    answer = register(client).post("/v1/webhooks", {"url": url, "types": ["*"]})
    assert (answer.status_code, answer.get_json()["code"]) == (400, "INVALID_INPUT")
    assert list(answer.get_json()["details"]["fields"]) == ["url"]


@pytest.mark.parametrize("types", [[], ["payment"], "*", None, [1], ["*", "x.*"]])
def test_unknown_types_are_refused(agent: Agent, types: object) -> None:
    answer = agent.post("/v1/webhooks", {"url": "https://hooks.example.com/x", "types": types})
    assert list(answer.get_json()["details"]["fields"]) == ["types"]


def test_an_agent_has_at_most_ten_targets(agent: Agent) -> None:
    for _ in range(10):
        add_webhook(agent, "https://hooks.example.com/x")
    answer = agent.post("/v1/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]})
    assert answer.get_json()["code"] == "LIMIT_REACHED"


def test_a_name_that_resolves_to_a_private_address_is_never_connected_to(
    build_app: Callable[..., Flask], sqlite_url: str
) -> None:
    app = build_app(sqlite_url)
    with app.app_context():
        agent = register(app.test_client())
        webhook = add_webhook(agent, "https://localhost/hooks")
        record(agent)
        deliver()
        [delivery] = deliveries_of(agent, webhook)
    assert delivery["attempts"][0]["error"] == "address_not_allowed"
