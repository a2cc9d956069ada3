"""Kills at every point of a bridge; checks of both chains, the record and the response."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from flask import Flask

from app.core.chains import USDC, ChainName
from app.core.money import parse_amount
from sandbox.bridges import BridgeServer
from sandbox.evm import EvmNode
from solana_node import SolanaNode
from tests.crash.conftest import Processes, counted_usd, on_both, start
from tests.support.bridges import running_bridges
from tests.support.chains import evm_chain, fund, usdc
from tests.support.processes import COMMIT, NodeAddress, Point, Scenario, SolanaAddress, distinct, points, work
from tests.support.solana import FINALIZED, fund_solana, solana_chain
from workers import confirmations, movements

pytestmark = pytest.mark.chain

# The idempotency claim; prepare; record (approval and burn signed in its unit); broadcast; settle; the response.
REQUEST = points(
    COMMIT, "quote", "prepare", "sign", "sign", COMMIT, "broadcast", "broadcast", "outcomes", COMMIT, COMMIT, COMMIT
)
# The lease; read the state; store the attestation; sign the mint in its unit; broadcast.
DELIVERY = points(COMMIT, COMMIT, "progress", COMMIT, "prepare_delivery", "sign", COMMIT, "broadcast")
# The lease; read the state; settle the arrival.
ARRIVAL = points(COMMIT, COMMIT, "progress", COMMIT)
ON_POSTGRES = [Point(COMMIT, "before", 2)]
ROUNDS = 8


@dataclass(slots=True, kw_only=True)
class Scene(Processes):
    """A funded agent with processes on two chains."""

    nodes: dict[ChainName, Any]
    source: ChainName = ChainName.BASE
    destination: ChainName = ChainName.ETHEREUM

    def request(self) -> Scenario:
        body = {
            "source_chain": self.source, "destination_chain": self.destination, "token": "USDC", "amount": "20",
        }  # fmt: skip
        return self.asking("bridge", body)

    def kill_worker(self, point: Point) -> None:
        """Kill the worker that completes bridges at a point, and check that the bridge ends once."""
        self.later()
        self.kill_in(STEP, point)
        self.assert_ends_in_one_bridge()

    def held(self, chain: ChainName) -> int:
        if chain is ChainName.SOLANA:
            return solana_chain(self.nodes[chain]).balances(self.agent.solana_address).of(USDC).units
        return evm_chain(self.nodes[chain]).balances(self.agent.address).of(USDC).units

    def pass_blocks(self) -> None:
        for name, node in self.nodes.items():
            if name is ChainName.SOLANA:
                node.advance(FINALIZED)
            else:
                node.mine(2)

    def later(self) -> None:
        """Advance the clock past all leases."""
        self.now += timedelta(seconds=61)

    def recover(self) -> None:
        for _ in range(ROUNDS):
            self.later()
            for name in self.nodes:
                self.run_here(partial(work, job=confirmations.confirm, arguments=(name.value,)))
            self.pass_blocks()
            self.run_here(STEP)
            if not [row for row in self.history() if row["status"] == "pending"]:
                return
        raise AssertionError(f"still pending: {self.history()}")

    def assert_ends_in_one_bridge(self) -> None:
        self.recover()
        self.later()
        status, body = self.run_here(self.request())
        assert status == 200, body
        self.recover()
        (row,) = self.history()
        assert row["id"] == body["transaction_id"]
        assert row["status"] == "confirmed", row
        assert self.held(self.source) == usdc(30)
        assert self.held(self.destination) == parse_amount(row["received_amount"], USDC).units
        assert counted_usd(self.app) == row["cost_usd"]


STEP: Scenario = partial(work, job=movements.advance, arguments=())


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
    nodes = {ChainName.BASE: crash_node, ChainName.ETHEREUM: ethereum_node}
    addresses = [NodeAddress.of(node) for node in nodes.values()]
    made = Scene(nodes=nodes, **start(build_app, database_url, *addresses, cctp_attestation_url=crash_services.url))
    fund(crash_node, made.agent.address, eth=1, dollars=50)
    fund(ethereum_node, made.agent.address, eth=1)
    return made


@pytest.fixture
def solana_scene(
    database_url: str,
    crash_node: EvmNode,
    solana_crash_node: SolanaNode,
    build_app: Callable[..., Flask],
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    """An agent with USDC on the chain of the test and gas on the other."""
    source: ChainName = request.param
    nodes = {ChainName.BASE: crash_node, ChainName.SOLANA: solana_crash_node}
    with running_bridges(base=crash_node.url, solana=solana_crash_node.url) as services:
        services.attester.faults.offers_forwarding = False
        is_base = source is ChainName.BASE
        addresses = (NodeAddress.of(crash_node), SolanaAddress(solana_crash_node.url))
        settings = {"cctp_attestation_url": services.url, "confirmation_wait_seconds": "2"}
        started = start(build_app, database_url, *addresses, **settings)
        fund(crash_node, started["agent"].address, eth=1, dollars=50 if is_base else 0)
        fund_solana(solana_crash_node, started["agent"].solana_address, sol=1, dollars=0 if is_base else 50)
        destination = ChainName.SOLANA if is_base else ChainName.BASE
        yield Scene(nodes=nodes, source=source, destination=destination, **started)


@pytest.mark.parametrize("solana_scene", [ChainName.SOLANA], indirect=True)
@pytest.mark.parametrize("point", [Point("sign", "after"), Point("broadcast", "after")], ids=str)
def test_a_solana_burn_of_a_killed_process_is_executed_at_most_once(solana_scene: Scene, point: Point) -> None:
    solana_scene.kill_in(solana_scene.request(), point)
    solana_scene.assert_ends_in_one_bridge()


@pytest.mark.parametrize("solana_scene", [ChainName.BASE], indirect=True)
@pytest.mark.parametrize("point", [Point("sign", "after"), Point("broadcast", "after")], ids=str)
def test_a_worker_killed_while_minting_on_solana_mints_once(solana_scene: Scene, point: Point) -> None:
    assert solana_scene.run_here(solana_scene.request())[0] == 200
    solana_scene.kill_worker(point)


@pytest.mark.parametrize(("database_url", "point"), on_both(distinct(REQUEST), ON_POSTGRES), indirect=["database_url"])
def test_a_bridge_of_a_killed_process_is_executed_at_most_once(scene: Scene, point: Point) -> None:
    scene.kill_in(scene.request(), point)
    scene.retry_at_once(scene.request())
    scene.assert_ends_in_one_bridge()


def test_every_step_of_a_bridge_is_a_kill_point(scene: Scene) -> None:
    end = scene.in_child(scene.request())
    assert [point for point in end.passed if point.step != "outcomes" or point.nth == 1] == REQUEST
    for steps in (DELIVERY, ARRIVAL):
        scene.later()
        assert list(scene.in_child(STEP).passed)[: len(steps)] == steps


@pytest.mark.parametrize("point", distinct(DELIVERY)[1:], ids=str)
def test_a_worker_killed_while_minting_mints_once(scene: Scene, point: Point) -> None:
    assert scene.run_here(scene.request())[0] == 200
    scene.kill_worker(point)


@pytest.mark.parametrize("point", distinct(ARRIVAL)[1:], ids=str)
def test_a_worker_killed_on_arrival_completes_the_bridge_once(scene: Scene, point: Point) -> None:
    assert scene.run_here(scene.request())[0] == 200
    scene.later()
    scene.run_here(STEP)
    scene.kill_worker(point)
