"""Events under concurrency on PostgreSQL: a cursor skips nothing, an object keeps its order, nothing is sent twice."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from flask import Flask
from sqlalchemy import select, text, update

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import deliveries, feed, outbox, queues
from app.events.models import Event, EventQueue, EventTarget
from app.events.outbox import EventType
from app.events.targets import Audience, Subscriber
from app.identity import service as identity
from app.platform import personal_data
from tests.support.agents import Agent, register
from tests.support.loopback_http import Asked, Reply
from tests.support.waiting import wait_until
from tests.support.webhooks import OK, add_webhook, deliver, deliveries_of, receiver

pytestmark = pytest.mark.postgres
THREADS, EVENTS = 8, 30


@pytest.fixture
def app(build_app: Callable[..., Flask], postgres_url: str) -> Flask:
    return build_app(postgres_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=30))


@pytest.fixture
def agent(app: Flask) -> Agent:
    with app.app_context():
        return register(app.test_client())


def record(agent: Agent, number: int, object_id: str | None = None) -> None:
    with unit_of_work() as session:
        _record(session, agent, number, object_id)


def _record(session: object, agent: Agent, number: int, object_id: str | None = None) -> None:
    outbox.record(
        session, EventType.PAYMENT_CONFIRMED, agent_id=agent.id, object_id=object_id or new_id(),
        data={"number": number},
    )  # type: ignore[arg-type]  # fmt: skip


def read(agent: Agent, after: int) -> tuple[list[int], int]:
    page = feed.read(Subscriber(Audience.AGENT, agent.id), after=after, types=(), limit=100)
    return [event.data["number"] for event in page["events"]], page["next_after"]


def test_an_event_that_commits_after_a_later_one_is_not_skipped(app: Flask, agent: Agent) -> None:
    inserted, may_commit = threading.Event(), threading.Event()

    def record_slowly() -> None:
        with app.app_context(), unit_of_work() as session:
            _record(session, agent, 1)
            session.flush()
            inserted.set()
            assert may_commit.wait(20)

    slow = threading.Thread(target=record_slowly)
    slow.start()
    assert inserted.wait(20)
    with app.app_context():
        record(agent, 2)
        first, after = read(agent, 0)
        may_commit.set()
        slow.join(20)
        second, after = read(agent, after)
        assert (first, second) == ([2], [1])
        assert read(agent, after) == ([], after)


def test_a_reader_among_many_writers_gets_every_event_once(app: Flask, agent: Agent) -> None:
    writing = threading.Event()
    writing.set()
    found: list[int] = []

    def write(writer: int) -> None:
        with app.app_context():
            for number in range(EVENTS):
                record(agent, writer * EVENTS + number)

    def follow() -> None:
        after = 0
        with app.app_context():
            while True:
                is_last = not writing.is_set()
                numbers, after = read(agent, after)
                found.extend(numbers)
                if is_last and not numbers:
                    return

    readers = [threading.Thread(target=follow)]
    readers[0].start()
    with ThreadPoolExecutor(THREADS) as writers:
        list(writers.map(write, range(THREADS)))
    writing.clear()
    readers[0].join(60)
    assert sorted(found) == list(range(THREADS * EVENTS))


def test_events_of_a_locked_object_are_read_in_the_order_of_their_changes(app: Flask, agent: Agent) -> None:
    changes: list[int] = []

    def change(number: int) -> None:
        with app.app_context(), unit_of_work() as session:
            identity.lock_agent(session, agent.id)
            changes.append(number)
            _record(session, agent, number, agent.id)

    with ThreadPoolExecutor(THREADS) as writers:
        list(writers.map(change, range(EVENTS)))
    with app.app_context():
        assert read(agent, 0)[0] == changes


def test_many_who_assign_positions_create_each_delivery_once(app: Flask, agent: Agent) -> None:
    with app.app_context():
        webhook = add_webhook(agent, "https://hooks.example.com/x")
        for number in range(EVENTS):
            record(agent, number)

    def assign(_number: int) -> None:
        with app.app_context():
            feed.number_all()

    with ThreadPoolExecutor(THREADS) as numberers:
        list(numberers.map(assign, range(THREADS)))
    with app.app_context():
        assert len(deliveries_of(agent, webhook, limit=200)) == EVENTS
        assert read(agent, 0)[0] == list(range(EVENTS))


def test_two_workers_send_each_event_once_and_in_order(app: Flask, agent: Agent) -> None:
    one = new_id()
    with receiver() as target:
        with app.app_context():
            add_webhook(agent, target.url)
            for number in range(EVENTS):
                record(agent, number, one if number % 2 else None)

        def work(_number: int) -> None:
            with app.app_context():
                deliver()

        with ThreadPoolExecutor(2) as workers:
            list(workers.map(work, range(2)))
        assert sorted(event["data"]["number"] for event in target.events) == list(range(EVENTS))
        of_one = [event["data"]["number"] for event in target.events if event["object_id"] == one]
        assert of_one == sorted(of_one)


def test_an_event_that_is_added_while_a_turn_ends_is_not_overlooked(app: Flask, agent: Agent) -> None:
    added, may_commit = threading.Event(), threading.Event()

    def add_slowly() -> None:
        with app.app_context(), unit_of_work() as session:
            earlier = session.scalars(select(Event).order_by(Event.position).limit(1)).all()
            feed.create_deliveries(session, earlier)
            added.set()
            assert may_commit.wait(20)

    adding = threading.Thread(target=add_slowly)

    def answer(_asked: Asked) -> Reply:
        adding.start()
        assert added.wait(20)
        return OK

    def turn() -> None:
        with app.app_context():
            deliveries.deliver_next()

    def is_over_or_waits() -> bool:
        with read_only_unit() as session:
            waiting = text(
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            return not delivering.is_alive() or bool(session.scalar(waiting))

    delivering = threading.Thread(target=turn)
    with receiver(answer) as target, app.app_context():
        record(agent, 1)
        feed.number_all()
        add_webhook(agent, target.url)
        record(agent, 2)
        feed.number_all()
        delivering.start()
        assert added.wait(20)
        wait_until(is_over_or_waits)
        may_commit.set()
        adding.join(20)
        delivering.join(20)
        assert deliveries.count_due() == 1


def test_a_target_that_does_not_answer_delays_no_other_target(app: Flask, agent: Agent) -> None:
    all_arrived = threading.Event()

    def hang(_asked: Asked) -> Reply:
        # Until the other target has its events, which it would never get behind this one.
        assert all_arrived.wait(14)
        return OK

    def count(asked: Asked) -> Reply:
        if json.loads(asked.body)["data"]["number"] == EVENTS - 1:
            all_arrived.set()
        return OK

    with receiver(hang) as slow, receiver(count) as fast, app.app_context():
        add_webhook(agent, slow.url)
        add_webhook(agent, fast.url)
        one = new_id()
        for number in range(EVENTS):
            record(agent, number, one)
        deliver()
        assert all_arrived.is_set()
        assert len(fast.events) == EVENTS


def test_an_idle_queue_is_kept_while_a_target_is_put_into_it(app: Flask, agent: Agent) -> None:
    def prune() -> int:
        with app.app_context():
            return personal_data.prune("event_queues", clock.now())

    target = EventTarget(agent_id=agent.id, audience="agent", url="https://hooks.example.com/x")
    with app.app_context(), ThreadPoolExecutor(1) as threads:
        with unit_of_work() as session:
            queues.join(session, target)
            session.execute(update(EventQueue).values(used_until=clock.now() - timedelta(days=2)))
        with unit_of_work() as session:
            queues.join(session, target)
            assert threads.submit(prune).result(30) == 0
        with read_only_unit() as session:
            assert session.scalars(select(EventQueue.name)).all() == [f"agent:{agent.id}"]
