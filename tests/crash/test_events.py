"""Kills while events are numbered and delivered: none is lost, ids are stable, and an object keeps its order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import pytest
import time_machine
from flask import Flask

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import unit_of_work
from app.events import outbox
from app.events.outbox import EventType
from tests.support.agents import Agent, register
from tests.support.processes import COMMIT, Point, ServiceThatBuys, distinct, points, run
from tests.support.webhooks import Receiver, add_webhook, deliver, deliveries_of, feed, receiver

# Positions and deliveries in one unit, a claim, two requests with their results, the release, and a claim of nothing.
STEPS = points(COMMIT, COMMIT, "send", COMMIT, "send", COMMIT, COMMIT, COMMIT)
LEASE = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class Stage:
    """An agent with a webhook, and two events of one object that no worker has seen."""

    service: ServiceThatBuys
    agent: Agent
    target: Receiver
    webhook: dict[str, str]
    ids: list[str]


@pytest.fixture
def stage(database_url: str, build_app: Callable[..., Flask]) -> Iterator[Stage]:
    app = build_app(database_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=5))
    with app.app_context(), receiver() as target:
        agent = register(app.test_client())
        webhook = add_webhook(agent, target.url)
        ids, one = [new_id(), new_id()], new_id()
        for event_id in ids:
            with unit_of_work() as session:
                outbox.record(
                    session, EventType.PAYMENT_CONFIRMED, agent_id=agent.id, object_id=one, data={}, event_id=event_id
                )  # fmt: skip
        yield Stage(ServiceThatBuys(database_url, ()), agent, target, webhook, ids)


def _deliver(_app: Flask) -> None:
    deliver()


@pytest.mark.parametrize("point", distinct(STEPS), ids=str)
def test_events_of_a_killed_worker_arrive_in_order_with_their_ids(stage: Stage, point: Point) -> None:
    assert run(stage.service, _deliver, point).killed
    # Nothing else is kept anywhere: the queue of this test forgets every job.
    with time_machine.travel(clock.now() + LEASE, tick=True):
        deliver()
        assert {each["status"] for each in deliveries_of(stage.agent, stage.webhook)} == {"delivered"}
    arrived = [event["id"] for event in stage.target.events]
    assert list(dict.fromkeys(arrived)) == stage.ids
    # Only the delivery without a recorded result is repeated, and before what follows it.
    assert arrived in (stage.ids, [stage.ids[0], *stage.ids], [*stage.ids, stage.ids[1]])
    assert [event["id"] for event in feed(stage.agent)] == stage.ids


def test_every_step_of_a_delivery_is_a_kill_point(stage: Stage) -> None:
    assert list(run(stage.service, _deliver).passed) == STEPS
