"""Setup of crash tests: a funded agent on a real node, a killed process, and a new one that resumes."""

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
from sqlalchemy import func, select

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.identifiers import new_id
from app.core.money import usd_from_nanos
from app.db.unit_of_work import read_only_unit
from app.extensions import db
from app.jobs import JobName
from app.payments import treasury
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
from tests.support.faults import FaultyChain
from tests.support.processes import End, NodeAddress, Point, Scenario, Service, SolanaAddress, Tripwire, ask, run
from tests.support.solana import fund_solana, running_solana, solana_address
from workers import confirmations, deposits, sweeps

BLOCKS_TO_FINALITY = {ChainName.BASE: 8, ChainName.SOLANA: 40}
ROUNDS = 6


def counted_usd(app: Flask) -> float:
    """Return what the holds of all days count: a scene may pass midnight, which ends the sum of the day."""
    counted = select(func.sum(SpendingHold.amount_nanos)).where(SpendingHold.state != SpendingHoldState.RELEASED)
    with app.app_context(), read_only_unit() as session:
        return float(usd_from_nanos(int(session.scalar(counted) or 0)))


@dataclass(slots=True, kw_only=True)
class Scene:
    """One agent, one database and one node, with successive processes."""

    pass_blocks: Callable[[int], object]
    service: Service
    build_app: Callable[..., Flask]
    app: Flask
    agent: Agent
    recipient: str
    on: ChainName = ChainName.BASE
    now: datetime = field(default_factory=clock.now)
    # Leases last a minute from when they were taken, which may be late on a slow machine.
    patience: timedelta = timedelta(seconds=80)
    """After this time the leases of killed processes have ended and everything is due."""

    @property
    def chain(self) -> FaultyChain:
        chain: FaultyChain = self.app.state.ports.chains[self.on]
        return chain

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

    def get(self, path: str) -> Any:
        status, body = self.run_here(
            partial(ask, method="GET", path=self.agent.wallet_url + path, headers=self.agent.headers())
        )
        assert status == 200, body
        return body

    def history(self) -> list[Mapping[str, Any]]:
        rows: list[Mapping[str, Any]] = self.get("/transactions")["transactions"]
        return rows

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
    """A scene on Base."""

    node: EvmNode


@dataclass(slots=True, kw_only=True)
class SolanaScene(Scene):
    """A scene on Solana; slots advance only by the test."""

    node: SolanaNode
    on: ChainName = ChainName.SOLANA


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
