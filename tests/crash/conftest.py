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
from sandbox.jupiter import JupiterServer
from sandbox.payers import EvmPayer
from sandbox.solana import SolanaNode
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import fund, running_node
from tests.support.faults import FaultyChain
from tests.support.processes import (
    End,
    NodeAddress,
    Point,
    Service,
    SolanaAddress,
    Story,
    Tripwire,
    ask,
    run,
)
from tests.support.solana import fund_solana, running_solana, solana_address
from workers import confirmations, deposits, sweeps

BLOCKS_TO_FINALITY = {ChainName.BASE: 8, ChainName.SOLANA: 40}
ROUNDS = 6


@dataclass(slots=True, kw_only=True)
class Scene:
    """One agent, one database, one node; processes come and go."""

    pass_blocks: Callable[[int], object]
    service: Service
    build_app: Callable[..., Flask]
    app: Flask
    agent: Agent
    recipient: str
    on: ChainName = ChainName.BASE
    now: datetime = field(default_factory=clock.now)
    # Leases last a minute from the moment at which a slow machine got round to taking them.
    patience: timedelta = timedelta(seconds=80)
    """After this time the leases of the dead have ended and everything is due again."""

    @property
    def chain(self) -> FaultyChain:
        chain: FaultyChain = self.app.extensions["ports"].chains[self.on]
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
            self.tell(partial(_worker_round, chain=self.on))
            self.pass_blocks(BLOCKS_TO_FINALITY[self.on])
            if not [row for row in self.history() if row["status"] == "pending"]:
                return
        raise AssertionError(f"still pending: {self.history()}")


@dataclass(slots=True, kw_only=True)
class EvmScene(Scene):
    """On Base."""

    node: EvmNode


@dataclass(slots=True, kw_only=True)
class SolanaScene(Scene):
    """On Solana, where time stands still unless the test lets slots pass."""

    node: SolanaNode
    on: ChainName = ChainName.SOLANA


def _worker_round(app: Flask, chain: ChainName) -> None:
    confirmations.confirm(chain.value)
    deposits.find(chain.value)
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
def scene(database_url: str, crash_node: EvmNode, build_app: Callable[..., Flask]) -> Iterator[EvmScene]:
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
    yield EvmScene(
        node=crash_node, pass_blocks=crash_node.mine, service=service, build_app=build_app, app=app, agent=agent,
        recipient=recipient,
    )  # fmt: skip
    crash_node.set_automine(True)


@pytest.fixture(scope="session")
def solana_crash_node() -> Iterator[SolanaNode]:
    """A Solana node for all crashes of this process, each with addresses of its own."""
    with running_solana(slot_ms=0) as node:
        yield node


@pytest.fixture(scope="session")
def jupiter(solana_crash_node: SolanaNode) -> Iterator[JupiterServer]:
    """The stand-in for Jupiter on that node."""
    server = JupiterServer(solana_crash_node.url)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def solana_scene(
    database_url: str,
    solana_crash_node: SolanaNode,
    jupiter: JupiterServer,
    build_app: Callable[..., Flask],
) -> Iterator[SolanaScene]:
    """An agent with 1 SOL and 50 USDC, and a recipient who never had any."""
    node = solana_crash_node
    service = Service(
        database_url,
        (SolanaAddress(node.url, jupiter.url),),
        {"confirmation_wait_seconds": "5", "log_level": "CRITICAL"},
    )
    app = build_app(database_url, settings=dict(service.settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
    fund_solana(node, agent.solana_address, sol=1, dollars=50)
    yield SolanaScene(
        node=node, pass_blocks=node.advance, service=service, build_app=build_app, app=app, agent=agent,
        recipient=solana_address(),
    )  # fmt: skip
    node.faults()


@pytest.fixture
def faucet_url(crash_node: EvmNode, tmp_path: Path) -> Iterator[str]:
    """The sandbox's faucet, for the crash node."""
    book = Book(tmp_path / "payments.sqlite")
    server = FaucetServer(Faucet(book, {"base": EvmPayer(crash_node.url, crash_node.deployment)}))
    server.start()
    yield server.url
    server.stop()
    book.close()
