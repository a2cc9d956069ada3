"""The scene of every crash: an agent with money on a real node, a process that dies, a fresh one that goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.extensions import db
from app.jobs import JobName
from sandbox.evm import EvmNode
from sandbox.faucet import Book, Faucet, FaucetServer
from sandbox.payers import EvmPayer
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import fund, running_node
from tests.support.faults import FaultyChain
from tests.support.processes import End, NodeAddress, Point, Service, Story, Tripwire, ask, run
from workers import confirmations, deposits, sweeps

BLOCKS_TO_FINALITY = 8
ROUNDS = 6


@dataclass(slots=True)
class Scene:
    """One agent, one database, one node; processes come and go."""

    node: EvmNode
    service: Service
    build_app: Callable[..., Flask]
    app: Flask
    agent: Agent
    recipient: str
    now: datetime = field(default_factory=clock.now)
    patience: timedelta = timedelta(seconds=61)
    """After this time the leases of the dead have ended and everything is due again."""

    @property
    def chain(self) -> FaultyChain:
        chain: FaultyChain = self.app.extensions["ports"].chains[ChainName.BASE]
        return chain

    def configure(self, **settings: Any) -> None:
        """Change settings for the processes to come."""
        self.service = replace(self.service, settings={**self.service.settings, **settings})

    def restart(self) -> None:
        """Forget the application and make a fresh one on what the database and the chain hold."""
        with self.app.app_context():
            db.engine.dispose()
        self.app = self.build_app(
            self.service.database_url, settings=dict(self.service.settings), **self.service.parts(Tripwire())
        )

    def in_child(self, story: Story, point: Point | None = None) -> End:
        """Run a story in a process of its own, now."""
        return run(self.service, story, point, at=self.now)

    def asking(self, verb: str, body: object, *, key: str = "once", **headers: str) -> Story:
        """Make the story of a request of the agent's."""
        path = f"{self.agent.wallet_url}/{verb}"
        return partial(
            ask,
            method="POST",
            path=path,
            body=body,
            headers=self.agent.headers(Idempotency_Key=key, **headers),
        )

    def tell(self, story: Story) -> Any:
        """Run a story here, now."""
        with self.app.app_context(), time_machine.travel(self.now, tick=True):
            return story(self.app)

    def get(self, path: str) -> Any:
        status, body = self.tell(
            partial(ask, method="GET", path=self.agent.wallet_url + path, headers=self.agent.headers())
        )
        assert status == 200, body
        return body

    def history(self) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = self.get("/transactions")["transactions"]
        return rows

    def spent_today(self) -> float:
        spent: float = self.get("/controls")["usage_today"]["spent_usd"]
        return spent

    def held_by(self, address: str) -> int:
        """Return micro-USDC."""
        return self.chain.real.balances(address).of(USDC).units

    def recover(self) -> None:
        """Let the workers of a fresh start work until nothing is pending, each round after all leases have ended."""
        for _ in range(ROUNDS):
            self.now += self.patience
            self.tell(_worker_round)
            self.node.mine(BLOCKS_TO_FINALITY)
            if not [row for row in self.history() if row["status"] == "pending"]:
                return
        raise AssertionError(f"still pending: {self.history()}")


def _worker_round(app: Flask) -> None:
    confirmations.confirm("base")
    deposits.find("base")
    sweeps.sweep()
    queue: RecordingQueue = app.extensions["ports"].queue
    for job, arguments in queue.put_jobs:
        if job is JobName.PAY_FROM_FAUCET:
            deposits.pay_from_faucet(*arguments)
    queue.put_jobs.clear()


@pytest.fixture(scope="session")
def crash_node() -> Iterator[EvmNode]:
    """A Base node for all crashes of this process; they come one after another, so each may rule its mining."""
    with running_node(ChainName.BASE) as node:
        yield node


@pytest.fixture(params=["sqlite"])
def database_url(request: pytest.FixtureRequest) -> str:
    """SQLite, or what a test's `DATABASES` asks for."""
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


@pytest.fixture
def scene(database_url: str, crash_node: EvmNode, build_app: Callable[..., Flask]) -> Iterator[Scene]:
    """An agent with 1 ETH and 50 USDC."""
    service = Service(
        database_url,
        (NodeAddress.of(crash_node),),
        {"base_stuck_blocks": 3, "confirmation_wait_seconds": "5", "log_level": "CRITICAL"},
    )
    app = build_app(database_url, settings=dict(service.settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
    fund(crash_node, agent.address, eth=1, dollars=50)
    recipient = "0x" + new_id().replace("-", "") + "c0ffee00"
    yield Scene(crash_node, service, build_app, app, agent, recipient)
    crash_node.set_automine(True)


@pytest.fixture
def faucet_url(crash_node: EvmNode, tmp_path: Path) -> Iterator[str]:
    """The sandbox's faucet, for the crash node."""
    book = Book(tmp_path / "payments.sqlite")
    server = FaucetServer(Faucet(book, {"base": EvmPayer(crash_node.url, crash_node.deployment)}))
    server.start()
    yield server.url
    server.stop()
    book.close()
