"""The feed of events: everything that happened to an agent's account, once, in order, and nothing of others."""

from __future__ import annotations

import threading
import time
from datetime import timedelta

import pytest
import time_machine
from flask import Flask
from flask.testing import FlaskClient
from sqlalchemy import func, select

from app.core import clock
from app.core.chains import ChainName
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.models import EventTarget
from app.events.outbox import EventType
from app.platform import personal_data
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.chains import fund
from tests.support.operators import operator as make_operator
from tests.support.webhooks import feed


def record(agent: Agent, number: int = 0) -> None:
    with unit_of_work() as session:
        outbox.record(
            session, EventType.PAYMENT_CONFIRMED, agent_id=agent.id, object_id=new_id(), data={"number": number}
        )


def test_a_cursor_reads_every_event_once(agent: Agent) -> None:
    for number in range(7):
        record(agent, number)
    numbers, after = [], 0
    while True:
        page = agent.get("/v1/events", after=after, limit=3).get_json()
        numbers += [event["data"]["number"] for event in page["events"]]
        after = page["next_after"]
        if not page["has_more"]:
            break
    assert numbers == list(range(7))
    assert agent.get("/v1/events", after=after).get_json() == {
        "events": [], "next_after": after, "has_more": False,
    }  # fmt: skip
    record(agent, 7)
    assert [event["data"]["number"] for event in feed(agent, after=after)] == [7]


def test_an_agent_reads_no_events_of_another(client: FlaskClient, agent: Agent) -> None:
    other = register(client)
    record(other)
    assert feed(agent) == []
    assert feed(agent, after=0, types="*") == []


def test_types_are_selected_by_name_and_by_group(agent: Agent) -> None:
    record(agent)
    assert len(feed(agent, types="payment.*")) == len(feed(agent, types="wallet.frozen,payment.confirmed")) == 1
    assert feed(agent, types="wallet.*") == []
    assert agent.get("/v1/events", types="payment").status_code == 400


@pytest.mark.parametrize("query", [{"after": "-1"}, {"after": "x"}, {"limit": "0"}])
def test_a_malformed_query_is_refused(agent: Agent, query: dict[str, str]) -> None:
    assert agent.get("/v1/events", **query).status_code == 400


def test_a_waiting_reader_gets_the_event_that_happens_meanwhile(app: Flask, agent: Agent) -> None:
    found: list[object] = []

    def wait() -> None:
        with app.app_context():
            answer = app.test_client().get("/v1/events", headers=agent.headers(Prefer="wait=25"))
            found.append((answer.headers["Preference-Applied"], len(answer.get_json()["events"])))

    reader = threading.Thread(target=wait)
    started = time.monotonic()
    reader.start()
    record(agent)
    reader.join(30)
    assert found == [("wait=25", 1)]
    assert time.monotonic() - started < 20


def test_a_freeze_is_an_event_of_the_agent(client: FlaskClient, agent: Agent) -> None:
    operator = make_operator(client)
    for action in ("freeze", "freeze", "unfreeze"):
        operator.post(f"/agents/{agent.id}/{action}")
    assert [(event["type"], event["object_id"]) for event in feed(agent)] == [
        ("wallet.frozen", agent.id), ("wallet.unfrozen", agent.id),
    ]  # fmt: skip


def test_the_webhooks_of_a_deleted_agent_are_removed(client: FlaskClient, agent: Agent) -> None:
    operator = make_operator(client)
    agent.post("/v1/webhooks", {"url": "https://hooks.example.com/x", "types": ["*"]})
    assert operator.delete(f"/agents/{agent.id}").status_code == 200
    with read_only_unit() as session:
        assert session.scalar(select(func.count()).select_from(EventTarget)) == 0


def test_events_are_kept_for_thirty_days(agent: Agent) -> None:
    record(agent, 1)
    with time_machine.travel(clock.now() + timedelta(days=29), tick=True):
        record(agent, 2)
        for name in ("event_deliveries", "events"):
            personal_data.prune(name, clock.now())
        assert [event["data"]["number"] for event in feed(agent)] == [1, 2]
    with time_machine.travel(clock.now() + timedelta(days=31), tick=True):
        for name in ("event_deliveries", "events"):
            personal_data.prune(name, clock.now())
        assert [event["data"]["number"] for event in feed(agent)] == [2]


def test_a_unit_that_rolls_back_leaves_no_event(agent: Agent) -> None:
    class Failed(Exception):
        pass

    def fail() -> None:
        with unit_of_work() as session:
            outbox.record(session, EventType.CREDITS_LOW, agent_id=agent.id, object_id=agent.id, data={})
            raise Failed

    with pytest.raises(Failed):
        fail()
    assert feed(agent) == []


def test_an_event_recorded_once_is_not_recorded_again(agent: Agent) -> None:
    for expected in (True, False):
        with unit_of_work() as session:
            made = outbox.record(
                session, EventType.CREDITS_LOW, agent_id=agent.id, object_id=agent.id, data={}, once="low"
            )
        assert made is expected
    assert len(feed(agent)) == 1


@pytest.mark.chain
def test_a_transfer_and_the_threshold_that_it_reaches_are_events(chain_app: Flask, base_node: EvmNode) -> None:
    agent = register(chain_app.test_client())
    fund(base_node, agent.address, eth=1, dollars=100)
    agent.controls(daily_limit_usd=20, weekly_limit_usd=0, monthly_limit_usd=0, per_tx_limit_usd=0)
    moved = agent.move("16", "USDC", chain=ChainName.BASE.value).get_json()
    found = {event["type"]: event for event in feed(agent)}
    assert list(found) == [
        "controls.changed", "budget.threshold_reached", "transaction.pending", "transaction.confirmed",
    ]  # fmt: skip
    confirmed = found["transaction.confirmed"]
    assert confirmed["object_id"] == confirmed["data"]["transaction_id"] == moved["transaction_id"]
    assert (confirmed["data"]["amount"], confirmed["data"]["currency"], confirmed["data"]["tx_hash"]) == (
        "16", "USDC", moved["tx_hash"],
    )  # fmt: skip
    threshold = found["budget.threshold_reached"]["data"]
    assert (threshold["window"], threshold["percent"], threshold["limit_usd"]) == ("day", 80, "20")
    assert agent.move("100", "USDC").status_code == 403
    assert len(feed(agent)) == 4


def test_reading_is_not_possible_without_an_agent_key(client: FlaskClient) -> None:
    gateway_key = client.post("/v1/keys", json={}).get_json()["api_key"]
    assert client.get("/v1/events", headers={"X-API-Key": gateway_key}).status_code == 401
    assert client.get("/v1/platform/events", headers={"X-API-Key": gateway_key}).status_code == 401
