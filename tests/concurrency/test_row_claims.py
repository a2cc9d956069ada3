"""Rows that one of many threads claims: on both databases, a unit that reads a row under a lock is alone with it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from flask import Flask
from sqlalchemy import select

from app.adapters.upstream_http.exchange import HttpUpstream
from app.core import clock
from app.core.identifiers import new_id
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.events import outbox
from app.events.models import EventSequence
from app.events.outbox import EventType
from tests.support.agents import register
from tests.support.webhooks import add_webhook, deliver, receiver

THREADS, WEBHOOKS, EVENTS = 8, 4, 12


@pytest.fixture
def app(build_app: Callable[..., Flask], each_database_url: str) -> Flask:
    return build_app(each_database_url, public_upstream=HttpUpstream(connect_seconds=1, read_seconds=30))


def test_many_threads_post_an_event_once_to_each_webhook(app: Flask) -> None:
    with receiver() as target, app.app_context():
        agent = register(app.test_client())
        for number in range(WEBHOOKS):
            add_webhook(agent, f"{target.url}/{number}", "payment.*")
        for _ in range(EVENTS):
            with unit_of_work() as session:
                outbox.record(session, EventType.PAYMENT_CONFIRMED, agent_id=agent.id, object_id=new_id(), data={})

        def work(_number: int) -> None:
            with app.app_context():
                deliver()

        with ThreadPoolExecutor(2) as workers:
            list(workers.map(work, range(2)))
        posted = Counter((asked.target, asked.headers["webhook-id"]) for asked in target.requests)
    assert len(posted) == WEBHOOKS * EVENTS
    assert set(posted.values()) == {1}


@pytest.mark.parametrize("reads_by_key", [False, True])
def test_a_row_that_is_read_under_a_lock_is_changed_by_no_other_unit_until_the_unit_ends(
    app: Flask, *, reads_by_key: bool
) -> None:
    together = threading.Barrier(THREADS)
    with app.app_context(), unit_of_work() as session:
        session.add(EventSequence(id=7, last_position=0))

    def add_one(_number: int) -> None:
        with app.app_context():
            together.wait(20)
            with unit_of_work() as session:
                row = (
                    session.get_one(EventSequence, 7, with_for_update=True)
                    if reads_by_key
                    else session.scalars(select(EventSequence).where(EventSequence.id == 7).with_for_update()).one()
                )
                # Without a lock, the others have read the same value by now.
                time.sleep(0.02)
                row.last_position += 1

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(add_one, range(THREADS)))
    with app.app_context(), read_only_unit() as session:
        assert session.scalar(select(EventSequence.last_position).where(EventSequence.id == 7)) == THREADS


def test_a_lock_on_sqlite_ends_with_its_unit(app: Flask) -> None:
    with app.app_context():
        with unit_of_work() as session:
            session.scalars(select(EventSequence).with_for_update()).all()
        with unit_of_work() as session:
            session.add(EventSequence(id=8, last_position=int(clock.now().timestamp())))
