"""Reports are read from a replica of PostgreSQL while it is fresh; what a client has just changed never is."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from threading import Thread

import psycopg
import pytest
import time_machine
from flask import Flask, current_app
from sqlalchemy.engine import make_url

from app.core import clock
from app.core.identifiers import new_id
from app.db import leases, replica
from app.db.leases import Heartbeat
from app.db.replica import report_engine
from app.db.unit_of_work import UnitError, read_only_unit, unit_of_work
from app.extensions import db
from app.usage import service
from app.usage.service import MeteredUsage, UsageCall
from tests.support.agents import Agent, register
from tests.support.servers import Postgres, postgres_replica
from tests.support.waiting import wait_until
from workers.sweeps import audit

pytestmark = pytest.mark.postgres
USD = 10**9


@pytest.fixture(scope="module")
def follower(postgres: Postgres) -> Iterator[Postgres]:
    with postgres_replica(postgres) as server:
        yield server


@dataclass(frozen=True, slots=True)
class Pair:
    """An application, and a connection to its replica that can stop it from following."""

    app: Flask
    replica: psycopg.Connection
    database: psycopg.Connection

    def catch_up(self) -> None:
        [[written]] = self.database.execute("SELECT pg_current_wal_insert_lsn()")
        wait_until(
            lambda: self.replica.execute("SELECT pg_last_wal_replay_lsn() >= %s", [written]).fetchone() == (True,)
        )

    def stop_following(self) -> None:
        self.catch_up()
        self.replica.execute("SELECT pg_wal_replay_pause()")
        wait_until(lambda: self.replica.execute("SELECT pg_get_wal_replay_pause_state()").fetchone() == ("paused",))

    def call(self, agent: Agent) -> None:
        with unit_of_work() as session:
            call = UsageCall(new_id(), "openai", "some-model")
            service.charge(session, agent.id, call, charge_id=new_id(), metered=MeteredUsage(USD))

    def age(self, by: timedelta) -> None:
        """Make the newest heartbeat older, and forget when the replica was checked."""
        with unit_of_work() as session:
            for each in session.query(Heartbeat):
                each.at -= by
        replica._checked.clear()


@pytest.fixture
def pair(build_app: Callable[..., Flask], postgres_url: str, follower: Postgres) -> Iterator[Pair]:
    url = make_url(postgres_url)
    at_replica = url.set(port=make_url(follower.url).port).render_as_string(hide_password=False)
    app = build_app(postgres_url, settings={"database_replica_url": at_replica})
    plain = [each.replace("+psycopg", "") for each in (at_replica, postgres_url)]
    with app.app_context(), psycopg.connect(plain[1], autocommit=True) as database:
        leases.record()
        [[written]] = database.execute("SELECT pg_current_wal_insert_lsn()")
        # Until its database has arrived, there is nothing to connect to.
        with psycopg.connect(follower.url.replace("+psycopg", ""), autocommit=True) as watching:
            wait_until(
                lambda: watching.execute("SELECT pg_last_wal_replay_lsn() >= %s", [written]).fetchone() == (True,)
            )
        with psycopg.connect(plain[0], autocommit=True) as connection:
            yield Pair(app, connection, database)
            connection.execute("SELECT pg_wal_replay_resume()")
        db.engines[replica.NAME].dispose()


def sums(agent: Agent) -> float:
    found = agent.get("/v1/usage/sums", group_by="provider").get_json()["sums"]
    return sum(float(each["cost_usd"]) for each in found)


def test_sums_come_from_the_replica_and_the_log_of_calls_from_the_database(pair: Pair) -> None:
    agent = register(pair.app.test_client())
    pair.call(agent)
    pair.stop_following()
    pair.call(agent)
    assert sums(agent) == 1
    assert agent.get("/v1/usage").get_json()["pagination"]["total"] == 2
    assert agent.get("/v1/balance").get_json()["credits_usd"] == 8


def test_a_replica_that_no_longer_follows_is_not_read_after_a_minute(pair: Pair) -> None:
    agent = register(pair.app.test_client())
    pair.age(replica.MAX_AGE - timedelta(seconds=20))
    pair.stop_following()
    pair.call(agent)
    assert sums(agent) == 0
    pair.replica.execute("SELECT pg_wal_replay_resume()")
    pair.age(timedelta(seconds=30))
    pair.stop_following()
    leases.record()
    pair.call(agent)
    replica._checked.clear()
    # The database has a new heartbeat, which the replica has not got.
    assert report_engine() is db.engine
    assert sums(agent) == 2


def test_without_a_replica_that_answers_reports_are_read_from_the_database(
    build_app: Callable[..., Flask], postgres_url: str
) -> None:
    nowhere = make_url(postgres_url).set(port=9).render_as_string(hide_password=False)
    app = build_app(postgres_url, settings={"database_replica_url": nowhere})
    with app.app_context():
        leases.record()
        assert report_engine() is db.engine
        assert sums(register(app.test_client())) == 0
        assert "replica: it does not respond" in app.test_cli_runner().invoke(args=["doctor"]).output


def test_nothing_is_written_through_the_replica(pair: Pair) -> None:
    pair.catch_up()
    replica._checked.clear()
    engine = report_engine()
    assert engine is db.engines[replica.NAME]
    with read_only_unit(engine) as session, pytest.raises(UnitError):
        session.query(Heartbeat).delete()


def test_a_violation_that_only_the_replica_shows_is_no_violation(pair: Pair) -> None:
    agent = register(pair.app.test_client())
    spent = "UPDATE credit_accounts SET spent_nanos = spent_nanos + %s, available_nanos = available_nanos - %s"
    pair.database.execute(spent, [USD, USD])
    pair.stop_following()
    found = audit()
    assert any(agent.id in each for each in found), found
    pair.database.execute(spent, [-USD, -USD])
    assert report_engine() is db.engines[replica.NAME]
    assert audit() == []


def test_doctor_says_that_a_replica_is_too_old(pair: Pair) -> None:
    pair.catch_up()
    assert "replica: " not in pair.app.test_cli_runner().invoke(args=["doctor"]).output
    pair.age(replica.MAX_AGE)
    pair.catch_up()
    assert "replica: it has no heartbeat" in pair.app.test_cli_runner().invoke(args=["doctor"]).output


def test_metrics_have_heartbeats_of_the_database(pair: Pair) -> None:
    pair.stop_following()
    pair.age(timedelta(hours=1))
    scraped = pair.app.test_client().get("/metrics").text
    assert report_engine() is db.engines[replica.NAME]
    [age] = re.findall(r'^purser_heartbeat_age_seconds{process="worker"} (\d+)', scraped, re.MULTILINE)
    assert int(age) >= 3600


def test_a_replica_that_takes_long_to_fail_does_not_delay_each_report(
    build_app: Callable[..., Flask], postgres_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, time_machine.travel(clock.now()) as traveller:
        nowhere = make_url(postgres_url).set(port=silent.getsockname()[1]).render_as_string(hide_password=False)
        app, accepted = build_app(postgres_url, settings={"database_replica_url": nowhere}), []

        def lose() -> None:
            with suppress(OSError):
                while True:
                    connection, _address = silent.accept()
                    accepted.append(connection)
                    traveller.shift(timedelta(seconds=6))
                    connection.close()

        thread = Thread(target=lose)
        thread.start()
        try:
            with app.app_context():
                assert [report_engine() for _ in range(3)] == [db.engine] * 3
        finally:
            silent.shutdown(socket.SHUT_RDWR)
            thread.join()
        assert len(accepted) == 1


def test_a_replica_that_disappears_between_two_looks_does_not_report_the_database_as_down(
    build_app: Callable[..., Flask], postgres_url: str
) -> None:
    nowhere = make_url(postgres_url).set(port=9).render_as_string(hide_password=False)
    with build_app(postgres_url, settings={"database_replica_url": nowhere}).app_context():
        leases.record()
        # It answered a moment ago.
        replica._checked[db.engines[replica.NAME]] = clock.now(), True
        scraped = current_app.test_client().get("/metrics").text
        assert "purser_database_up 1" in scraped
        assert "purser_credits_usd" not in scraped
