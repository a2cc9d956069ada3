"""Loss of the database connection: at any time, and between a COMMIT and its response."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
import pytest
import time_machine
from flask import Flask
from psycopg import sql
from sqlalchemy.engine import make_url

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from app.extensions import db
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import fund
from tests.support.databases import DatabaseProxy, database_proxy
from tests.support.evm import Person
from tests.support.faults import FaultyChain
from tests.support.logs import written_logs
from workers import confirmations, schedule

pytestmark = [pytest.mark.chain, pytest.mark.postgres]
BASE = ChainName.BASE


@pytest.fixture
def way(postgres_url: str) -> Iterator[DatabaseProxy]:
    with database_proxy(postgres_url) as way:
        yield way
        way.restore()


@pytest.fixture
def chain(chains: dict[ChainName, EvmChain]) -> FaultyChain:
    return FaultyChain(chains[BASE])


@pytest.fixture
def app(way: DatabaseProxy, postgres_url: str, build_app: Callable[..., Flask], chain: FaultyChain) -> Iterator[Flask]:
    build_app(postgres_url)  # audited at the end, over a direct connection
    queue = RecordingQueue()
    queue.away = True
    app = build_app(way.url, chains={BASE: chain}, queue=queue)
    with app.app_context():
        yield app
        way.swallows_commit_of = None
        way.restore()
        db.engine.dispose()


@pytest.fixture
def agent(app: Flask, base_node: EvmNode) -> Agent:
    made = register(app.test_client())
    fund(base_node, made.address, eth=1, dollars=10)
    return made


def test_without_the_database_requests_get_retry_after_and_workers_retry(
    app: Flask, agent: Agent, way: DatabaseProxy
) -> None:
    way.cut()
    answer = agent.get("/v1/balance")
    assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED")
    assert answer.headers["Retry-After"] == "1"
    assert "details" not in answer.get_json()
    assert app.test_client().get("/v1/health").get_json()["checks"]["database"] == "unreachable"
    with written_logs() as lines:
        schedule.tick(include_sweep=True)
        failed = {line["job"] for line in lines() if line["event"] == "inline_job_failed"}
    assert failed >= {"workers.confirmations.confirm", "workers.sweeps.sweep"}

    way.restore()
    assert agent.get("/v1/balance").status_code == 200
    with written_logs() as lines:
        schedule.tick(include_sweep=True)
        assert not [line for line in lines() if line["event"] == "inline_job_failed"]
    assert app.test_client().get("/v1/health").get_json()["checks"] == {
        "database": "ok", "redis": "unreachable", "worker": "ok",
    }  # fmt: skip


def test_a_replica_that_is_not_yet_promoted_refuses_writes_and_they_may_be_repeated(
    agent: Agent, postgres_url: str, chain: FaultyChain
) -> None:
    to, key = Person().address, {"Idempotency_Key": "once"}
    with read_only(postgres_url):
        assert agent.get("/v1/balance").status_code == 200
        answer = agent.move("2", "USDC", to=to, **key)
        assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED"), answer.text
        assert answer.headers["Retry-After"] == "1"
        assert "details" not in answer.get_json()
    assert agent.move("2", "USDC", to=to, **key).status_code == 200
    assert paid_once(agent, chain, to) == 2_000_000


@contextmanager
def read_only(postgres_url: str) -> Iterator[None]:
    """Make new connections to the database as those to a replica: they read."""
    url = make_url(postgres_url).set(drivername="postgresql")
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as connection:
        setting = sql.SQL("ALTER DATABASE {} {} default_transaction_read_only {}").format
        name = sql.Identifier(url.database or "")
        connection.execute(setting(name, sql.SQL("SET"), sql.SQL("= on")))
        db.engine.dispose()
        try:
            yield
        finally:
            connection.execute(setting(name, sql.SQL("RESET"), sql.SQL("")))
            db.engine.dispose()


def test_a_transfer_with_an_unknown_commit_is_reported_unknown_and_its_retry_pays_nothing(
    agent: Agent, way: DatabaseProxy, chain: FaultyChain
) -> None:
    to, key = Person().address, {"Idempotency_Key": "once"}
    way.swallows_commit_of = b"INSERT INTO transactions "
    answer = agent.move("2", "USDC", to=to, **key)
    assert way.swallowed.is_set()
    assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED"), answer.text
    assert answer.get_json()["details"] == {"outcome": "unknown"}
    assert "Retry-After" not in answer.headers

    way.swallows_commit_of = None
    way.restore()
    (made,) = agent.history()
    again = agent.move("2", "USDC", to=to, **key)
    assert (again.status_code, again.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    with time_machine.travel(clock.now().timestamp() + 61, tick=True):
        retried = agent.move("2", "USDC", to=to, **key)
    assert (retried.status_code, retried.get_json()["transaction_id"]) == (200, made["id"]), retried.text
    assert paid_once(agent, chain, to) == 2_000_000


def test_a_transfer_broadcast_before_the_database_was_lost_is_pending_and_settled_later(
    agent: Agent, way: DatabaseProxy, chain: FaultyChain
) -> None:
    to = Person().address
    chain.fail("broadcast", "after", way.cut)
    answer = agent.move("2", "USDC", to=to)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "pending")
    way.restore()
    assert paid_once(agent, chain, to) == 2_000_000


def paid_once(agent: Agent, chain: FaultyChain, to: str) -> int:
    """Let workers settle the only transaction; return the amount received."""
    for minutes in (1, 2, 3):
        with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
            confirmations.confirm("base")
    (row,) = agent.history()
    assert row["status"] == "confirmed"
    return chain.real.balances(to).of(USDC).units
