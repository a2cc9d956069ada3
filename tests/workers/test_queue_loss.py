"""Real workers, a real scheduler and a real Redis, which are killed, flushed and stopped while movements are open."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from pydantic import SecretStr
from redis import Redis
from redis.exceptions import RedisError

from app import wiring
from app.core.chains import ChainName
from launcher.redis_server import INSTALL_HINT, find_program
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.applications import settings_for
from tests.support.chains import fund
from tests.support.hosts import ROOT, command_of
from tests.support.loopback_http import unused_url
from tests.support.processes import Program
from tests.support.servers import Postgres, free_port
from tests.support.waiting import wait_until
from tests.support.webhooks import add_webhook, receiver

pytestmark = [pytest.mark.chain, pytest.mark.postgres, pytest.mark.redis, pytest.mark.timeout(400)]

FAST_SECONDS = 1.5
# A worker that is killed during a pass keeps its lease on the chain for a minute.
SETTLED_SECONDS = 100.0


@dataclass(slots=True)
class Fleet:
    """The worker and scheduler processes, with the database and Redis of the web process."""

    settings: dict[str, Any]
    redis: Program
    worker: Program
    scheduler: Program

    @property
    def redis_url(self) -> str:
        url: str = self.settings["redis_url"]
        return url

    def heal(self) -> None:
        """Restart all processes, as a host does."""
        self.redis.resume()
        self.redis.ensure()
        wait_until(self._redis_answers, what="Redis")
        self.worker.ensure()
        self.scheduler.ensure()

    def _redis_answers(self) -> bool:
        try:
            with Redis.from_url(self.redis_url, socket_timeout=0.5) as client:
                return bool(client.ping())
        except RedisError:
            return False


@pytest.fixture(scope="module")
def fleet(postgres: Postgres, _postgres_template: str, base_node: EvmNode, ethereum_node: EvmNode) -> Iterator[Fleet]:
    """A running worker and scheduler."""
    worker_name = os.environ.get("PYTEST_XDIST_WORKER", "main")
    database = f"purser_{worker_name}_fleet"
    port = free_port()
    settings: dict[str, Any] = {
        "database_url": postgres.create_database(database, template=_postgres_template),
        "redis_url": f"redis://127.0.0.1:{port}/0",
        "base_rpc_url": base_node.url,
        "ethereum_rpc_url": ethereum_node.url,
        "solana_rpc_url": unused_url(),
        "poll_interval_seconds": "0.5",
        "rate_limit_per_key": "6000 per minute",
        "allow_private_upstreams": "true",
    }
    program = find_program()
    assert program is not None, INSTALL_HINT
    with tempfile.TemporaryDirectory(prefix="purser-test-fleet-") as folder:
        arguments = ("--bind", "127.0.0.1", "--port", str(port), "--dir", folder, "--save", "")
        environment = _environment(settings)
        made = Fleet(
            settings,
            Program([str(program), *arguments], environment, Path(folder)),
            Program(command_of("worker"), environment, ROOT),
            Program(command_of("scheduler"), environment, ROOT),
        )
        made.heal()
        yield made
        for one in (made.scheduler, made.worker, made.redis):
            one.kill()
    postgres.drop_database(database)


def _environment(settings: dict[str, Any]) -> dict[str, str]:
    """Return all settings as environment variables."""
    complete = settings_for(**settings)
    environment = {"PATH": os.environ.get("PATH", "")}
    for group in (complete, complete.upstreams):
        for name in group.model_fields_set - {"upstreams"}:
            value = getattr(group, name)
            text = value.get_secret_value() if isinstance(value, SecretStr) else value
            environment[name.upper()] = ",".join(text) if isinstance(text, tuple) else str(text)
    return environment


@pytest.fixture
def web(fleet: Fleet, build_app: Callable[..., Flask]) -> Iterator[Flask]:
    """The web application, wired as in production."""
    fleet.heal()
    ports = wiring.build(settings_for(**fleet.settings))
    settings = {name: value for name, value in fleet.settings.items() if name != "database_url"}
    parts = {port.name: getattr(ports, port.name) for port in fields(ports)}
    app = build_app(fleet.settings["database_url"], settings=settings, **parts)
    with app.app_context():
        yield app


@pytest.fixture
def agent(web: Flask, base_node: EvmNode, ethereum_node: EvmNode) -> Agent:
    made = register(web.test_client())
    for node in (base_node, ethereum_node):
        fund(node, made.address, eth=1, dollars=20)
    return made


def _send(agent: Agent, *chains: ChainName) -> list[str]:
    """Start a transfer on each chain without waiting for it."""
    sent = []
    for chain in chains:
        answer = agent.move("1", "USDC", chain=chain.value, Prefer="respond-async")
        assert (answer.status_code, answer.get_json()["status"]) == (200, "pending")
        sent.append(answer.get_json()["transaction_id"])
    return sent


def _await_confirmed(agent: Agent, sent: list[str]) -> None:
    def done() -> bool:
        return {agent.transaction(one)["status"] for one in sent} == {"confirmed"}

    wait_until(done, SETTLED_SECONDS, interval=0.1, what="confirmation by the workers")


BOTH = (ChainName.BASE, ChainName.ETHEREUM)


def test_workers_confirm_open_movements_and_a_flushed_redis_loses_nothing(fleet: Fleet, agent: Agent) -> None:
    _await_confirmed(agent, _send(agent, *BOTH))
    sent = _send(agent, *BOTH)
    with Redis.from_url(fleet.redis_url) as client:
        client.flushall()
    _await_confirmed(agent, sent)
    assert agent.spent_this_month() == 4


def test_a_redis_that_is_flushed_again_and_again_loses_no_event(fleet: Fleet, agent: Agent) -> None:
    with receiver() as target, Redis.from_url(fleet.redis_url) as client:
        add_webhook(agent, target.url, "transaction.*")
        sent = []
        for _ in range(3):
            sent += _send(agent, *BOTH)
            client.flushall()
        expected = {(one, status) for one in sent for status in ("transaction.pending", "transaction.confirmed")}

        def delivered() -> bool:
            client.flushall()
            return len(target.events) >= len(expected)

        wait_until(delivered, SETTLED_SECONDS, interval=0.5, what="every event")
        seen = [(each["object_id"], each["type"]) for each in target.events]
    assert (set(seen), len(seen)) == (expected, len(expected))
    for one in sent:
        assert [kind for of, kind in seen if of == one] == ["transaction.pending", "transaction.confirmed"]


def test_a_killed_worker_loses_no_work(fleet: Fleet, agent: Agent) -> None:
    sent = _send(agent, *BOTH)
    fleet.worker.kill()
    sent += _send(agent, *BOTH)
    fleet.worker.ensure()
    _await_confirmed(agent, sent)


def test_a_killed_scheduler_loses_no_work(fleet: Fleet, agent: Agent) -> None:
    sent = _send(agent, *BOTH)
    fleet.scheduler.kill()
    fleet.scheduler.ensure()
    _await_confirmed(agent, sent)


def test_a_worker_that_starts_before_redis_waits_for_it(fleet: Fleet, agent: Agent) -> None:
    fleet.redis.kill()
    fleet.worker.kill()
    fleet.worker.ensure()
    _await_confirmed(agent, _send(agent, *BOTH))
    fleet.redis.ensure()
    _await_confirmed(agent, _send(agent, *BOTH))
    assert fleet.worker.running


@pytest.mark.parametrize("how", ["killed", "hanging"])
def test_without_redis_requests_are_answered_quickly_and_movements_are_settled(
    how: str, fleet: Fleet, agent: Agent
) -> None:
    if how == "killed":
        fleet.redis.kill()
    else:
        fleet.redis.send(signal.SIGSTOP)
    slowest = 0.0
    sent: list[str] = []
    for _ in range(5):
        for ask in (lambda: agent.get(agent.wallet_url), lambda: sent.extend(_send(agent, ChainName.BASE))):
            started = time.monotonic()
            ask()
            slowest = max(slowest, time.monotonic() - started)
    assert slowest < FAST_SECONDS
    _await_confirmed(agent, sent)

    fleet.heal()
    _await_confirmed(agent, _send(agent, *BOTH))
    assert agent.spent_this_month() == 7
