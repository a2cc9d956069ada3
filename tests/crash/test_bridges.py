"""A process that carries a bridge dies at every point of it; what both chains, the record and the caller then have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
import time_machine
from flask import Flask

from app.core import clock
from app.core.chains import USDC, ChainName
from app.core.money import parse_amount
from app.extensions import db
from sandbox.bridges import BridgeServer
from sandbox.evm import EvmNode
from tests.support.agents import Agent, register
from tests.support.bridges import running_bridges
from tests.support.chains import evm_chain, fund, usdc
from tests.support.processes import (
    COMMIT,
    End,
    NodeAddress,
    Point,
    Service,
    Story,
    Tripwire,
    ask,
    points,
    run,
    work,
)
from workers import bridges, confirmations

pytestmark = pytest.mark.chain

# The claim on the key; beat 0; beat 1 (approval and burn signed inside its unit); beat 2; beat 3; the stored answer.
REQUEST = points(
    COMMIT,
    "quote",
    "prepare",
    "sign",
    "sign",
    COMMIT,
    "broadcast",
    "broadcast",
    "outcomes",
    COMMIT,
    COMMIT,
    COMMIT,
)
# The lease (two tries); taking stock; the attestation is there and kept; the mint is signed in its unit and sent.
DELIVERY = points(COMMIT, COMMIT, COMMIT, "follow", COMMIT, "deliver", "sign", COMMIT, "broadcast")
# The lease; taking stock; it has arrived.
ARRIVAL = points(COMMIT, COMMIT, COMMIT, "follow", COMMIT)
ON_POSTGRES = [Point("sign", "after", 2), Point(COMMIT, "after", 2), Point("broadcast", "after")]
ROUNDS = 8


def _deaths(passed: list[Point], *, first: int = 0) -> list[Point]:
    """Return the points after each step: to die before one is to die after the one before it."""
    return [point for point in passed if point.when == "after"][first:]


EVERYWHERE = [("sqlite", point) for point in _deaths(REQUEST)] + [
    pytest.param("postgres", point, marks=pytest.mark.postgres, id=f"postgres-{point}")
    for point in ON_POSTGRES
]


@dataclass(slots=True, kw_only=True)
class Scene:
    """An agent with money on Base, and processes that come and go."""

    service: Service
    build_app: Callable[..., Flask]
    app: Flask
    agent: Agent
    nodes: dict[ChainName, EvmNode]
    now: datetime = field(default_factory=clock.now)

    def restart(self) -> None:
        with self.app.app_context():
            db.engine.dispose()
        self.app = self.build_app(
            self.service.database_url, settings=dict(self.service.settings), **self.service.parts(Tripwire())
        )

    def in_child(self, story: Story, point: Point | None = None) -> End:
        return run(self.service, story, point, at=self.now)

    def tell(self, story: Story) -> Any:
        with self.app.app_context(), time_machine.travel(self.now, tick=True):
            return story(self.app)

    def request(self) -> Story:
        body = {"source_chain": "base", "destination_chain": "ethereum", "token": "USDC", "amount": "20"}
        path = f"{self.agent.wallet_url}/bridge"
        return partial(
            ask, method="POST", path=path, body=body, headers=self.agent.headers(Idempotency_Key="once")
        )

    def history(self) -> list[dict[str, Any]]:
        path = f"{self.agent.wallet_url}/transactions"
        _status, body = self.tell(partial(ask, method="GET", path=path, headers=self.agent.headers()))
        rows: list[dict[str, Any]] = body["transactions"]
        return rows

    def held(self, chain: ChainName) -> int:
        return evm_chain(self.nodes[chain]).balances(self.agent.address).of(USDC).units

    def later(self) -> None:
        """Let all leases of the dead end."""
        self.now += timedelta(seconds=61)

    def recover(self) -> None:
        for _ in range(ROUNDS):
            self.later()
            for name, node in self.nodes.items():
                self.tell(partial(work, job=confirmations.confirm, arguments=(name.value,)))
                node.mine(2)
            self.tell(STEP)
            if not [row for row in self.history() if row["status"] == "pending"]:
                return
        raise AssertionError(f"still pending: {self.history()}")

    def assert_ends_in_one_bridge(self) -> None:
        self.recover()
        self.later()
        status, body = self.tell(self.request())
        assert status == 200, body
        self.recover()
        (row,) = self.history()
        assert row["id"] == body["transaction_id"]
        assert row["status"] == "confirmed", row
        assert self.held(ChainName.BASE) == usdc(30)
        assert self.held(ChainName.ETHEREUM) == parse_amount(row["received_amount"], USDC).units
        _, body = self.tell(
            partial(ask, method="GET", path=f"{self.agent.wallet_url}/controls", headers=self.agent.headers())
        )
        assert body["usage_today"]["spent_usd"] == row["cost_usd"]


STEP: Story = partial(work, job=bridges.step, arguments=())


@pytest.fixture(scope="session")
def crash_services(crash_node: EvmNode, ethereum_node: EvmNode) -> Iterator[BridgeServer]:
    with running_bridges(base=crash_node.url, ethereum=ethereum_node.url) as server:
        server.attester.faults.offers_forwarding = False
        yield server


@pytest.fixture
def scene(
    database_url: str,
    crash_node: EvmNode,
    ethereum_node: EvmNode,
    crash_services: BridgeServer,
    build_app: Callable[..., Flask],
) -> Scene:
    """An agent with 1 ETH on both chains, and 50 USDC on Base."""
    settings = {
        "cctp_attestation_url": crash_services.url, "confirmation_wait_seconds": "5", "log_level": "CRITICAL",
    }  # fmt: skip
    nodes = {ChainName.BASE: crash_node, ChainName.ETHEREUM: ethereum_node}
    service = Service(database_url, tuple(NodeAddress.of(node) for node in nodes.values()), settings)
    app = build_app(database_url, settings=dict(service.settings), **service.parts(Tripwire()))
    with app.app_context():
        agent = register(app.test_client())
    fund(crash_node, agent.address, eth=1, dollars=50)
    fund(ethereum_node, agent.address, eth=1)
    return Scene(service=service, build_app=build_app, app=app, agent=agent, nodes=nodes)


@pytest.mark.parametrize(("database_url", "point"), EVERYWHERE, indirect=["database_url"], ids=str)
def test_a_bridge_whose_process_is_killed_crosses_once_or_not_at_all(scene: Scene, point: Point) -> None:
    assert scene.in_child(scene.request(), point).killed
    scene.restart()
    assert len(scene.history()) <= 1
    # Whoever repeats the request at once is told to wait, or gets the answer; never a second bridge.
    status, body = scene.tell(scene.request())
    assert status == 200 or body["code"] == "IDEMPOTENCY_CONFLICT"
    assert len(scene.history()) <= 1
    scene.assert_ends_in_one_bridge()


def test_the_points_of_a_bridge_are_all_that_it_passes(scene: Scene) -> None:
    end = scene.in_child(scene.request())
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == REQUEST
    scene.later()
    assert list(scene.in_child(STEP).passed)[: len(DELIVERY)] == DELIVERY
    scene.later()
    assert list(scene.in_child(STEP).passed)[: len(ARRIVAL)] == ARRIVAL


@pytest.mark.parametrize("point", _deaths(DELIVERY, first=2), ids=str)
def test_a_worker_killed_while_it_delivers_mints_once(scene: Scene, point: Point) -> None:
    assert scene.tell(scene.request())[0] == 200
    scene.later()
    assert scene.in_child(STEP, point).killed
    scene.restart()
    scene.assert_ends_in_one_bridge()


@pytest.mark.parametrize("point", _deaths(ARRIVAL, first=2), ids=str)
def test_a_worker_killed_while_it_sees_the_arrival_ends_the_bridge_once(scene: Scene, point: Point) -> None:
    assert scene.tell(scene.request())[0] == 200
    scene.later()
    scene.tell(STEP)
    scene.later()
    assert scene.in_child(STEP, point).killed
    scene.restart()
    scene.assert_ends_in_one_bridge()
