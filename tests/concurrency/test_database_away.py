"""PostgreSQL goes away: at any moment, and in the one between a COMMIT and its answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import time_machine
from flask import Flask

from app.adapters.evm.chain import EvmChain
from app.core import clock
from app.core.chains import USDC, ChainName
from app.extensions import db
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import fund
from tests.support.databases import Way, way_to
from tests.support.evm import Person
from tests.support.faults import FaultyChain
from tests.support.logs import written_logs
from workers import confirmations, schedule

pytestmark = [pytest.mark.chain, pytest.mark.postgres]
BASE = ChainName.BASE


@pytest.fixture
def way(postgres_url: str) -> Iterator[Way]:
    with way_to(postgres_url) as way:
        yield way
        way.mend()


@pytest.fixture
def chain(chains: dict[ChainName, EvmChain]) -> FaultyChain:
    return FaultyChain(chains[BASE])


@pytest.fixture
def app(way: Way, postgres_url: str, build_app: Callable[..., Flask], chain: FaultyChain) -> Iterator[Flask]:
    build_app(postgres_url)  # which is audited at the end, on a way that nobody cuts
    queue = RecordingQueue()
    queue.away = True
    app = build_app(way.url, chains={BASE: chain}, queue=queue)
    with app.app_context():
        yield app
        way.swallows_commit_of = None
        way.mend()
        db.engine.dispose()


@pytest.fixture
def agent(app: Flask, base_node: EvmNode) -> Agent:
    made = register(app.test_client())
    fund(base_node, made.address, eth=1, dollars=10)
    return made


def test_requests_are_told_to_come_back_and_workers_try_again_until_the_database_is_there(
    app: Flask, agent: Agent, way: Way
) -> None:
    way.cut()
    answer = agent.get("/v1/balance")
    assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED")
    assert answer.headers["Retry-After"] == "1"
    assert "details" not in answer.get_json()
    assert app.test_client().get("/v1/health").get_json()["checks"]["database"] == "unreachable"
    with written_logs() as lines:
        schedule.tick(with_sweep=True)
        failed = {line["job"] for line in lines() if line["event"] == "inline_job_failed"}
    assert failed >= {"workers.confirmations.confirm", "workers.sweeps.sweep"}

    way.mend()
    assert agent.get("/v1/balance").status_code == 200
    with written_logs() as lines:
        schedule.tick(with_sweep=True)
        assert not [line for line in lines() if line["event"] == "inline_job_failed"]
    assert app.test_client().get("/v1/health").get_json()["checks"] == {
        "database": "ok", "redis": "unreachable", "worker": "ok",
    }  # fmt: skip


def test_a_movement_whose_commit_got_no_answer_is_called_unknown_and_its_repetition_pays_nothing(
    agent: Agent, way: Way, chain: FaultyChain
) -> None:
    to, key = Person().address, {"Idempotency_Key": "once"}
    way.swallows_commit_of = b"INSERT INTO transactions "
    answer = agent.move("2", "USDC", to=to, **key)
    assert way.swallowed.is_set()
    assert (answer.status_code, answer.get_json()["code"]) == (503, "OVERLOADED"), answer.text
    assert answer.get_json()["details"] == {"outcome": "unknown"}
    assert "Retry-After" not in answer.headers

    way.swallows_commit_of = None
    way.mend()
    (made,) = agent.history()
    again = agent.move("2", "USDC", to=to, **key)
    assert (again.status_code, again.get_json()["code"]) == (409, "IDEMPOTENCY_CONFLICT")
    with time_machine.travel(clock.now().timestamp() + 61, tick=True):
        told = agent.move("2", "USDC", to=to, **key)
    assert (told.status_code, told.get_json()["transaction_id"]) == (200, made["id"]), told.text
    assert paid_once(agent, chain, to) == 2_000_000


def test_a_movement_that_was_sent_when_the_database_went_away_is_pending_and_settled_later(
    agent: Agent, way: Way, chain: FaultyChain
) -> None:
    to = Person().address
    chain.fail("broadcast", "after", way.cut)
    answer = agent.move("2", "USDC", to=to)
    assert (answer.status_code, answer.get_json()["status"]) == (200, "pending")
    way.mend()
    assert paid_once(agent, chain, to) == 2_000_000


def paid_once(agent: Agent, chain: FaultyChain, to: str) -> int:
    """Let workers settle the one movement that there is; return what came of it."""
    for minutes in (1, 2, 3):
        with time_machine.travel(clock.now().timestamp() + 60 * minutes, tick=True):
            confirmations.confirm("base")
    (row,) = agent.history()
    assert row["status"] == "confirmed"
    return chain.real.balances(to).of(USDC).units
