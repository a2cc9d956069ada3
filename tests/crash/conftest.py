"""Setup of crash tests: a funded agent on a real node, a killed process, and a new one that resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import time_machine
from flask import Flask
from sqlalchemy import func, select

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.money import usd_from_nanos
from app.db.unit_of_work import read_only_unit
from app.extensions import db
from app.jobs import JobName
from app.payments import treasury
from app.ports.errors import Unreachable
from app.spending.holds import SpendingHoldState
from app.spending.models import SpendingHold
from sandbox.evm import EvmNode
from sandbox.faucet import Faucet, FaucetServer, PaymentLedger
from sandbox.jupiter import JupiterServer
from sandbox.payers import EvmPayer
from solana_node import SolanaNode
from tests.support.agents import Agent, register
from tests.support.applications import RecordingQueue
from tests.support.chains import fund, running_node
from tests.support.drivers import fresh_address
from tests.support.faults import FaultyChain
from tests.support.processes import End, NodeAddress, Point, Scenario, Service, SolanaAddress, Tripwire, ask, run, work
from tests.support.solana import CONFIRMED, fund_solana, passing, running_solana, solana_address
from workers import confirmations, deposits, sweeps

BLOCKS_TO_FINALITY = {ChainName.BASE: 8, ChainName.SOLANA: 40}
ROUNDS = 6


def counted_usd(app: Flask) -> float:
    """Return what the holds of all days count: a scene may pass midnight, which ends the sum of the day."""
    counted = select(func.sum(SpendingHold.amount_nanos)).where(SpendingHold.state != SpendingHoldState.RELEASED)
    with app.app_context(), read_only_unit() as session:
        return float(usd_from_nanos(int(session.scalar(counted) or 0)))


@dataclass(slots=True, kw_only=True)
class Processes:
    """One agent and one database with successive processes."""

    service: Service
    build_app: Callable[..., Flask]
    app: Flask
    agent: Agent
    now: datetime = field(default_factory=clock.now)

    def configure(self, **settings: Any) -> None:
        """Change settings of later processes."""
        self.service = replace(self.service, settings={**self.service.settings, **settings})

    def restart(self) -> None:
        """Replace the application by a new one on the same database and chain."""
        with self.app.app_context():
            db.engine.dispose()
        self.app = self.build_app(
            self.service.database_url, settings=dict(self.service.settings), **self.service.parts(Tripwire())
        )

    def in_child(self, scenario: Scenario, point: Point | None = None) -> End:
        """Run a scenario in a separate process."""
        return run(self.service, scenario, point, at=self.now)

    def kill_in(self, scenario: Scenario, point: Point) -> None:
        """Kill a process at a point of a scenario, and start the next one."""
        assert self.in_child(scenario, point).killed
        self.restart()

    def asking(self, verb: str, body: object, *, key: str = "once", **headers: str) -> Scenario:
        """Return the scenario of a request of the agent."""
        path = f"{self.agent.wallet_url}/{verb}"
        return partial(
            ask, method="POST", path=path, body=body, headers=self.agent.headers(Idempotency_Key=key, **headers)
        )

    def run_here(self, scenario: Scenario) -> Any:
        """Run a scenario in this process."""
        with self.app.app_context(), time_machine.travel(self.now, tick=True):
            return scenario(self.app)

    def retry_at_once(self, scenario: Scenario) -> list[str]:
        """Repeat what was killed: a conflict or the response, and no second movement. Return what was recorded."""
        recorded = [row["id"] for row in self.history()]
        assert len(recorded) <= 1
        status, body = self.run_here(scenario)
        assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
        assert len(self.history()) <= 1
        return recorded

    def get(self, path: str) -> Any:
        status, body = self.run_here(
            partial(ask, method="GET", path=self.agent.wallet_url + path, headers=self.agent.headers())
        )
        assert status == 200, body
        return body

    def history(self) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = self.get("/transactions")["transactions"]
        return rows


def start(
    build_app: Callable[..., Flask], database_url: str, *nodes: NodeAddress | SolanaAddress, **settings: Any
) -> dict[str, Any]:
    """Start the first process with a new agent; return the fields of `Processes`."""
    service = Service(database_url, nodes, {"confirmation_wait_seconds": "5", "log_level": "CRITICAL", **settings})
    app = build_app(database_url, settings=dict(service.settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
    return {"service": service, "build_app": build_app, "app": app, "agent": agent}


@dataclass(slots=True, kw_only=True)
class Scene(Processes):
    """Processes on one node."""

    pass_blocks: Callable[[int], object]
    recipient: str
    on: ChainName = ChainName.BASE
    native: str = "ETH"
    # What a first transfer to the recipient counts besides its amount.
    extra_usd: float = 0
    # Leases last a minute from when they were taken, which may be late on a slow machine.
    patience: timedelta = timedelta(seconds=80)
    """After this time the leases of killed processes have ended and everything is due."""

    @property
    def chain(self) -> FaultyChain:
        chain: FaultyChain = self.app.state.ports.chains[self.on]
        return chain

    @property
    def address(self) -> str:
        return self.agent.address

    def transfer(self, amount: str = "2", *, key: str = "once") -> Scenario:
        """Return the scenario of a transfer of USDC to the recipient."""
        body = {"amount": amount, "currency": "USDC", "chain": self.on.value, "to": self.recipient}
        return self.asking("transfer", body, key=key)

    def swap(self) -> Scenario:
        """Return the scenario of a swap of 10 USDC for the chain's own token."""
        body = {"chain": self.on.value, "input_token": "USDC", "output_token": self.native, "amount": "10"}
        return self.asking("swap", body)

    def job(self, job: Callable[..., None] = confirmations.confirm) -> Scenario:
        """Return the scenario of a worker's pass for the chain."""
        return partial(work, job=job, arguments=(self.on.value,))

    def passing(self) -> AbstractContextManager[None]:
        """Let blocks come while the service runs."""
        return nullcontext()

    def land(self) -> None:
        """Let what was broadcast be confirmed."""

    def held_by(self, address: str) -> int:
        """Return the balance in micro-USDC."""
        return self.chain.real.balances(address).of(USDC).units

    def recover(self) -> None:
        """Run workers after a restart until nothing is pending, each round after all leases have ended."""
        for _ in range(ROUNDS):
            self.now += self.patience
            self.run_here(partial(_worker_round, chain=self.on))
            self.pass_blocks(BLOCKS_TO_FINALITY[self.on])
            if not [row for row in self.history() if row["status"] == "pending"]:
                return
        raise AssertionError(f"still pending: {self.history()}")


@dataclass(slots=True, kw_only=True)
class EvmScene(Scene):
    """A scene on Base, where each transaction is mined immediately."""

    node: EvmNode

    def leave_stuck(self, scenario: Scenario) -> None:
        """Leave a movement pending for longer than the replacement threshold, with one pass of a worker."""
        self.configure(confirmation_wait_seconds="0")
        self.restart()
        self.node.set_automine(on=False)
        body = self.run_here(scenario)[1]
        self.node.rpc("anvil_dropTransaction", body["tx_hash"])
        self.chain.raising("rebroadcast", "before", Unreachable("dropped"))
        self.now += self.patience
        self.run_here(self.job())
        self.node.mine(4)
        self.now += self.patience


@dataclass(slots=True, kw_only=True)
class SolanaScene(Scene):
    """A scene on Solana; slots advance only by the test."""

    node: SolanaNode
    on: ChainName = ChainName.SOLANA
    native: str = "SOL"
    extra_usd: float = 0.305892

    @property
    def address(self) -> str:
        return self.agent.solana_address

    def passing(self) -> AbstractContextManager[None]:
        return passing(self.node)

    def land(self) -> None:
        self.node.advance(CONFIRMED)


def on_both(points: Sequence[Point], on_postgres: Sequence[Point], *chains: ChainName) -> list[Any]:
    """Return chains, databases and points: all on SQLite, some on PostgreSQL.

    What a process has committed is the same on both, and so is what the next one makes of it. On PostgreSQL alone a
    server has to end the unit that was open, and to release its locks: there processes are killed before the commit of
    the unit that records the money.
    """
    postgres = pytest.mark.postgres
    return [
        pytest.param(*chains, database, point, marks=marks, id="-".join((*chains, database, str(point))))
        for database, chosen, marks in (("sqlite", points, ()), ("postgres", on_postgres, postgres))
        for point in chosen
    ]


def _worker_round(app: Flask, chain: ChainName) -> None:
    confirmations.confirm(chain.value)
    deposits.find(chain.value)
    sweeps.sweep()
    queue: RecordingQueue = app.state.ports.queue
    for job, arguments in queue.put_jobs:
        if job is JobName.PAY_FROM_FAUCET:
            deposits.pay_from_faucet(*arguments)
    queue.put_jobs.clear()


@pytest.fixture(scope="session")
def crash_node() -> Iterator[EvmNode]:
    """A Base node for all crash tests of this process, which run sequentially and may change its mining."""
    with running_node(ChainName.BASE) as node:
        yield node


@pytest.fixture
def scene(database_url: str, crash_node: EvmNode, build_app: Callable[..., Flask]) -> Iterator[EvmScene]:
    """An agent with 1 ETH and 50 USDC."""
    started = start(build_app, database_url, NodeAddress.of(crash_node), base_stuck_blocks=3)
    made = EvmScene(node=crash_node, pass_blocks=crash_node.mine, recipient=fresh_address(), **started)
    fund(crash_node, made.address, eth=1, dollars=50)
    yield made
    crash_node.set_automine(True)


@pytest.fixture(scope="session")
def solana_crash_node() -> Iterator[SolanaNode]:
    """A Solana node for all crash tests of this process, with separate addresses."""
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
    database_url: str, solana_crash_node: SolanaNode, jupiter: JupiterServer, build_app: Callable[..., Flask]
) -> Iterator[SolanaScene]:
    """An agent with 1 SOL and 50 USDC, and a recipient without funds."""
    node = solana_crash_node
    started = start(build_app, database_url, SolanaAddress(node.url, jupiter.url))
    made = SolanaScene(node=node, pass_blocks=node.advance, recipient=solana_address(), **started)
    fund_solana(node, made.address, sol=1, dollars=50)
    yield made
    node.faults()


@pytest.fixture(params=[ChainName.BASE, ChainName.SOLANA])
def each_scene(request: pytest.FixtureRequest, database_url: str) -> Scene:
    """The scene on each chain, on the database of `database_url`."""
    assert database_url
    made: Scene = request.getfixturevalue("solana_scene" if request.param is ChainName.SOLANA else "scene")
    return made


@pytest.fixture
def scene_without_sol(solana_scene: SolanaScene) -> SolanaScene:
    """An agent with 50 USDC and no SOL, and a service that submits for it."""
    scene = solana_scene
    with scene.app.app_context():
        scene.agent = register(scene.app.test_client())
        fund_solana(scene.node, treasury.settler(scene.on), sol=1)
        fund_solana(scene.node, treasury.recipient(scene.on), sol=0, dollars=0.000001)
    fund_solana(scene.node, scene.agent.solana_address, sol=0, dollars=50)
    return scene


@pytest.fixture
def faucet_url(crash_node: EvmNode, tmp_path: Path) -> Iterator[str]:
    """The sandbox's faucet, for the crash node."""
    book = PaymentLedger(tmp_path / "payments.sqlite")
    server = FaucetServer(Faucet(book, {"base": EvmPayer(crash_node.url, crash_node.deployment)}))
    server.start()
    yield server.url
    server.stop()
    book.close()
