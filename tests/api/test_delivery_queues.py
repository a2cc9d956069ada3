"""The order of deliveries: slow targets and backlogs delay only their own agent, which never has all the threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import pytest
import time_machine
from flask import Flask
from sqlalchemy import select

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import deliveries, feed, outbox, queues, targets
from app.events.channels import Attempt
from app.events.models import EventQueue, EventTarget
from app.events.outbox import EventType
from app.events.queues import QueueRank
from app.events.targets import Audience, Subscriber
from app.idempotency.service import Claim
from app.platform import personal_data
from tests.support.agents import Agent, register
from tests.support.loopback_http import Asked, Reply
from tests.support.waiting import wait_until
from tests.support.webhooks import OK, Receiver, add_webhook, deliver, receiver
from workers import events

BROKEN = Reply(b"", 500)


@pytest.fixture
def app(build_app: Callable[..., Flask], each_database_url: str) -> Flask:
    return build_app(each_database_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=30))


def record(agent: Agent, event_type: EventType = EventType.PAYMENT_CONFIRMED) -> None:
    with unit_of_work() as session:
        outbox.record(session, event_type, agent_id=agent.id, object_id=new_id(), data={})


def targets_of(receiver: Receiver) -> list[str]:
    return [asked.target for asked in receiver.requests]


def test_an_agent_with_a_backlog_is_served_after_one_that_was_served_longer_ago(agent: Agent) -> None:
    busy = register(agent.client)
    with receiver() as target:
        # A target that is due for longer was chosen first, whatever else it had got meanwhile.
        for number in range(3):
            add_webhook(busy, f"{target.url}/busy{number}", "payment.*")
        add_webhook(agent, f"{target.url}/quiet", "payment.*")
        record(busy)
        feed.number_all()
        with time_machine.travel(clock.now() + timedelta(seconds=2), tick=True):
            record(agent)
            feed.number_all()
            for _ in range(2):
                assert deliveries.deliver_next()
        assert "/hooks/quiet" in targets_of(target)


def test_two_threads_at_most_wait_for_the_targets_of_one_agent(agent: Agent) -> None:
    may_answer = threading.Event()

    def hang(_asked: Asked) -> Reply:
        assert may_answer.wait(20)
        return OK

    with ExitStack() as stack:
        slow = stack.enter_context(receiver(hang))
        for number in range(5):
            add_webhook(agent, f"{slow.url}/{number}", "payment.*")
        record(agent)
        feed.number_all()
        started = events.start_threads()
        try:
            wait_until(lambda: len(slow.requests) == 2)
            # The others found nothing that they may serve, and neither does a next round.
            wait_until(lambda: sum(thread.is_alive() for thread in started) == 2)
            assert deliveries.count_due() == 0
            assert not deliveries.deliver_next()
            assert len(slow.requests) == 2
        finally:
            may_answer.set()
            for thread in started:
                thread.join(20)
        deliver()
        assert len(slow.requests) == 5


def test_an_owner_is_served_while_agents_keep_all_common_threads_busy(agent: Agent) -> None:
    may_answer = threading.Event()

    def hang(_asked: Asked) -> Reply:
        assert may_answer.wait(30)
        return BROKEN

    with receiver(hang) as hostile, receiver() as owners:
        for _ in range(11):
            other = register(agent.client)
            for number in range(2):
                add_webhook(other, f"{hostile.url}/{number}", "payment.*")
            record(other)
        feed.number_all()
        started = events.start_threads()
        try:
            wait_until(lambda: len(hostile.requests) == 20)
            targets.create_webhook(
                Subscriber(Audience.OWNER, agent.id),
                url=owners.url,
                types=["wallet.*"],
                description="",
                claim=Claim.none(),
            )
            record(agent, EventType.WALLET_FROZEN)
            feed.number_all()
            started += events.start_threads()
            wait_until(lambda: owners.types == ["wallet.frozen"])
            assert len(hostile.requests) == 20
        finally:
            may_answer.set()
            for thread in started:
                thread.join(30)


@pytest.mark.parametrize(
    ("attempt", "expected"),
    [
        (Attempt(clock.now(), 3001, status_code=500), True),
        (Attempt(clock.now(), 14_000, status_code=307), True),
        (Attempt(clock.now(), 2999, status_code=500), False),
        (Attempt(clock.now(), 14_000, status_code=200), False),
        (Attempt(clock.now(), 10, error="connection_refused"), True),
    ],
)
def test_a_slow_failure_is_left_alone_like_silence(attempt: Attempt, *, expected: bool) -> None:
    assert attempt.holds_up is expected


def test_a_target_that_fails_slowly_is_paused_with_its_backlog(agent: Agent) -> None:
    def fail_slowly(_asked: Asked) -> Reply:
        threading.Event().wait(3.1)
        return BROKEN

    with receiver(fail_slowly) as target:
        webhook = add_webhook(agent, target.url, "payment.*")
        for _ in range(5):
            record(agent)
        deliver()
        assert len(target.requests) == 1
        with read_only_unit() as session:
            assert session.get_one(EventTarget, webhook["id"]).paused_until > clock.now()


def test_an_agent_that_used_its_time_waits_and_is_served_again(agent: Agent) -> None:
    with receiver() as target:
        add_webhook(agent, target.url, "payment.*")
        add_webhook(register(agent.client), target.url, "payment.*")
        with unit_of_work() as session:
            turn = queues.QueueTurn(f"agent:{agent.id}", clock.now())
            assert queues.add_use(session, turn, timedelta(minutes=9))
            assert not queues.add_use(session, turn, timedelta(minutes=2))
        record(agent)
        deliver()
        assert target.events == []
        with time_machine.travel(clock.now() + timedelta(minutes=10), tick=True):
            deliver()
        assert len(target.events) == 1


def test_a_queue_of_a_worker_that_died_is_served_when_its_lease_has_expired(agent: Agent) -> None:
    with receiver() as target:
        add_webhook(agent, target.url, "payment.*")
        record(agent)
        feed.number_all()
        assert deliveries._claim(QueueRank.AGENT) is not None
        assert not deliveries.deliver_next()
        with time_machine.travel(clock.now() + queues.LEASE + timedelta(seconds=1), tick=True):
            deliver()
        assert len(target.events) == 1


def test_a_new_webhook_does_not_begin_anew_with_the_time_of_its_agent(agent: Agent) -> None:
    webhook = add_webhook(agent, "https://hooks.example.com/x")
    with unit_of_work() as session:
        queues.add_use(session, queues.QueueTurn(f"agent:{agent.id}", clock.now()), timedelta(minutes=5))
    agent.client.delete(f"/v1/webhooks/{webhook['id']}", headers=agent.headers())
    personal_data.prune("event_queues", clock.now())
    add_webhook(agent, "https://hooks.example.com/x")
    with read_only_unit() as session:
        used_until = session.scalar(select(EventQueue.used_until).where(EventQueue.name == f"agent:{agent.id}"))
    assert used_until is not None
    assert used_until > clock.now() + timedelta(minutes=25)
