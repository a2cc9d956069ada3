"""Processes that are killed on purpose: a scenario runs in a child that is killed at a chosen point.

A point is before or after the n-th time of a step (a method of a port, or a commit). A scenario is a function of the
application.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

import time_machine
from flask import Flask
from sqlalchemy import event
from sqlalchemy.engine import Engine

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.contracts.deployments import EvmDeployment
from app.adapters.faucet_http import HttpFaucet
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.swaps.jupiter.exchange import JupiterExchange
from app.adapters.swaps.uniswap import UniswapExchange
from app.adapters.upstream_http.exchange import HttpUpstream, HttpUpstreamResponse
from app.core.chains import ChainName
from app.core.money import TokenAmount
from app.extensions import db
from app.jobs import JobName
from app.ports.services import Faucet
from app.ports.swaps import SwapExchange
from app.ports.upstream import UpstreamRequest
from app.usage.grouped import Step, StepGroups
from app.wallets.core import custody
from sandbox.evm import EvmNode
from tests.support.applications import RecordingQueue, bridges_on, make_app, settings_for
from tests.support.chains import CONFIRMATIONS
from tests.support.faults import FaultyBridge, FaultyChain, FaultyExchange, When, kill
from tests.support.payments import facilitator_of
from tests.support.program_forks import fork_server
from tests.support.servers import _tie_to_the_tests

SCENARIO_SECONDS = 100.0
COMMIT = "commit"
_TRACES = {COMMIT, "broadcast", "rebroadcast", "send", "pay"}
"""The steps that leave a trace: in the database, on a chain or at another service."""
_ALWAYS = 10**9
_VERBS = (
    "balances",
    "broadcast",
    "draft_cancellation",
    "deposits",
    "draft",
    "head",
    "scan_state",
    "orphaned_blocks",
    "outcomes",
    "rebroadcast",
    "draft_replacement",
    "sign",
)

_EXCHANGE_VERBS = ("quote", "draft", "sign")
_BRIDGE_VERBS = ("quote", "prepare", "sign", "progress", "prepare_delivery")

Scenario = Callable[[Flask], Any]
Wired = TypeVar("Wired", FaultyBridge, FaultyChain, FaultyExchange)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A point at which a process is killed: before or after the `nth` time of a step."""

    step: str
    when: When
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.step}" + (f" {self.nth}" if self.nth > 1 else "")


def points(*steps: str) -> list[Point]:
    """Return the points before and after each step, numbering steps of the same name."""
    found: list[Point] = []
    for number, step in enumerate(steps):
        nth = steps[: number + 1].count(step)
        found += [Point(step, "before", nth), Point(step, "after", nth)]
    return found


def distinct(passed: Sequence[Point]) -> list[Point]:
    """Return one point for each state that a killed process can leave: before each step with a trace, and the last.

    All points between two such steps leave the same state. The last of them follows every statement that the kill
    must undo.
    """
    return [point for point in passed if point.when == "before" and point.step in _TRACES] + [passed[-1]]


@dataclass(slots=True)
class Tripwire:
    """Counts the steps of a process, and kills it at its point."""

    point: Point | None = None
    passed: list[Point] = field(default_factory=list)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, name: str, when: When) -> None:
        """Count a step, or kill the process there."""
        with self._lock:
            self._counts[name, when] += 1
            here = Point(name, when, self._counts[name, when])
            self.passed.append(here)
        if here == self.point:
            kill()


class WiredQueue(RecordingQueue):
    """A queue with `put` as a step."""

    def __init__(self, wire: Tripwire) -> None:
        super().__init__()
        self._wire = wire

    def enqueue(self, job: JobName, *arguments: str) -> bool:
        self._wire.step("enqueue", "before")
        taken = super().enqueue(job, *arguments)
        self._wire.step("enqueue", "after")
        return taken


class WiredFaucet:
    """A faucet with `pay` as a step."""

    def __init__(self, real: Faucet, wire: Tripwire) -> None:
        self._real = real
        self._wire = wire

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        self._wire.step("pay", "before")
        self._real.pay(reference, chain=chain, address=address, amount=amount)
        self._wire.step("pay", "after")


class WiredUpstream(HttpUpstream):
    """A client for services, on loopback too, with `send` as a step."""

    def __init__(self, wire: Tripwire) -> None:
        super().__init__(connect_seconds=5, read_seconds=60)
        self._wire = wire

    def send(self, request: UpstreamRequest) -> HttpUpstreamResponse:
        self._wire.step("send", "before")
        response = super().send(request)
        self._wire.step("send", "after")
        return response


class WiredStepGroups:
    """Groups of steps with the commit of each step's batch as a step."""

    def __init__(self, real: StepGroups, wire: Tripwire) -> None:
        self._real = real
        self._wire = wire

    def run(self, step: Step[Any]) -> Any:
        self._wire.step(COMMIT, "before")
        result = self._real.run(step)
        self._wire.step(COMMIT, "after")
        return result


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The address of a node, which can be sent to another process."""

    name: ChainName
    url: str
    deployment: EvmDeployment

    @classmethod
    def of(cls, node: EvmNode) -> NodeAddress:
        return cls(ChainName(node.name), node.url, node.deployment)

    def chain(self) -> EvmChain:
        return EvmChain(
            self.name,
            self.deployment,
            rpc_urls=[self.url],
            deposit_confirmations=CONFIRMATIONS[self.name],
            connect_seconds=20,
            read_seconds=60,
        )

    def exchange(self) -> SwapExchange:
        return UniswapExchange(self.chain())


@dataclass(frozen=True, slots=True)
class SolanaAddress:
    """The address of a Solana node."""

    url: str
    jupiter_url: str = "http://127.0.0.1:1"
    name: ChainName = ChainName.SOLANA

    def chain(self) -> SolanaChain:
        return SolanaChain(SOLANA_DEPLOYMENTS["sandbox"], rpc_urls=[self.url], read_seconds=60)

    def exchange(self) -> SwapExchange:
        return JupiterExchange(self.chain(), self.jupiter_url)


@dataclass(frozen=True, slots=True)
class Service:
    """The parameters of the service in a process; any number may run concurrently."""

    database_url: str
    nodes: tuple[NodeAddress | SolanaAddress, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    faucet_url: str | None = None

    def parts(self, wire: Tripwire) -> dict[str, Any]:
        """Create the ports, with steps that may kill the process."""
        chains = {node.name: _wired(FaultyChain(node.chain()), wire) for node in self.nodes}
        exchanges = {
            node.name: _wired(FaultyExchange(node.exchange()), wire, verbs=_EXCHANGE_VERBS) for node in self.nodes
        }
        facilitators = {name: facilitator_of(chain) for name, chain in chains.items()}
        settings = settings_for(self.database_url, **self.settings)
        bridges = {
            route: tuple(_wired(FaultyBridge(way), wire, verbs=_BRIDGE_VERBS) for way in ways)
            for route, ways in bridges_on(settings, chains).items()
        }
        parts: dict[str, Any] = {
            "chains": chains,
            "swap_exchanges": exchanges,
            "bridges": bridges,
            "facilitators": facilitators,
            "queue": WiredQueue(wire),
        }
        if self.faucet_url:
            parts["faucet"] = WiredFaucet(HttpFaucet(self.faucet_url), wire)
        return parts

    def app(self, wire: Tripwire) -> Flask:
        """Create the application on these ports."""
        return make_app(settings_for(self.database_url, **self.settings), **self.parts(wire))


@dataclass(frozen=True, slots=True)
class ServiceThatBuys(Service):
    """A process that may call services on loopback."""

    def parts(self, wire: Tripwire) -> dict[str, Any]:
        return {**super(ServiceThatBuys, self).parts(wire), "public_upstream": WiredUpstream(wire)}


def _wired(faulty: Wired, wire: Tripwire, *, verbs: Sequence[str] = _VERBS) -> Wired:
    for verb in verbs:
        faulty.fail(verb, "before", lambda verb=verb: wire.step(verb, "before"), times=_ALWAYS)  # type: ignore[misc]
        faulty.fail(verb, "after", lambda verb=verb: wire.step(verb, "after"), times=_ALWAYS)  # type: ignore[misc]
    return faulty


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: the result of its scenario and the points it passed, or that it was killed."""

    killed: bool
    answer: Any = None
    passed: tuple[Point, ...] = ()


def run(service: Service, scenario: Scenario, point: Point | None = None, *, at: datetime | None = None) -> End:
    """Run a scenario in a separate process, optionally at another time, and wait for its end.

    Raises: AssertionError when the process ended neither with its scenario nor at its point.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = fork_server().Process(target=_live, args=(service, scenario, point, at, sender), daemon=True)
    child.start()
    sender.close()
    try:
        answer, passed = receiver.recv() if receiver.poll(SCENARIO_SECONDS) else (None, ())
    except EOFError:
        answer, passed = None, ()
    child.join(SCENARIO_SECONDS)
    killed = child.exitcode == -signal.SIGKILL
    if child.exitcode is None:
        child.kill()
        child.join()
    if not killed and child.exitcode != 0:
        raise AssertionError(f"the process ended with {child.exitcode}")
    return End(killed, answer, tuple(passed))


def _live(service: Service, scenario: Scenario, point: Point | None, at: datetime | None, answer: Connection) -> None:
    wire = Tripwire(point)
    app = service.app(wire)
    with app.app_context(), time_machine.travel(at, tick=True) if at else nullcontext():
        # Once per process, and not part of any scenario.
        custody.assert_network()
        # The database driver cannot be interrupted, so these two surround the commit.
        event.listen(Engine, "commit", lambda _connection: wire.step(COMMIT, "before"))
        event.listen(db.session, "after_commit", lambda _session: wire.step(COMMIT, "after"))
        groups = WiredStepGroups(app.state.part(StepGroups), wire)
        app.state = replace(app.state, parts={**app.state.parts, StepGroups: groups})
        answer.send((scenario(app), tuple(wire.passed)))
    # Without clean-up: nothing may depend on it.
    os._exit(0)


def ask(
    app: Flask, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Scenario of one HTTP request; return status and body."""
    answer = app.test_client().open(path, method=method, json=body, headers=dict(headers or {}))
    return answer.status_code, answer.get_json()


@dataclass(frozen=True, slots=True)
class Asked:
    """One request among many."""

    method: str
    path: str
    body: object
    headers: Mapping[str, str]


def crowd(app: Flask, requests: Sequence[Asked], start: Barrier | None = None) -> list[tuple[int, Any]]:
    """Scenario of concurrent requests, each in its own thread; return responses in the same order.

    `start` synchronises several processes.
    """
    ready = threading.Barrier(len(requests) + 1)

    def one(asked: Asked) -> tuple[int, Any]:
        ready.wait(SCENARIO_SECONDS)
        return ask(app, asked.method, asked.path, asked.body, asked.headers)

    with ThreadPoolExecutor(len(requests)) as threads:
        answers = [threads.submit(one, asked) for asked in requests]
        if start is not None:
            start.wait(SCENARIO_SECONDS)
        ready.wait(SCENARIO_SECONDS)
        return [answer.result() for answer in answers]


def crowds(service: Service, *shares: Sequence[Asked]) -> list[tuple[int, Any]]:
    """Run one process per share of requests concurrently; return all responses."""
    start = fork_server().Barrier(len(shares))
    with ThreadPoolExecutor(len(shares)) as threads:
        ends = list(threads.map(lambda share: run(service, partial(crowd, requests=share, start=start)), shares))
    return [answer for end in ends for answer in end.answer]


def work(_app: Flask, job: Callable[..., None], arguments: tuple[str, ...]) -> None:
    """Scenario of one job of the workers."""
    job(*arguments)


class Program:
    """A program that a test starts, kills and starts again."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ensure(self) -> None:
        """Start it if it does not run."""
        if self.running:
            return
        self._process = subprocess.Popen(
            [*_tie_to_the_tests(), *self._command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def send(self, signum: signal.Signals) -> None:
        """Send a signal to the program and its forks."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signum)

    def resume(self) -> None:
        """Resume a stopped program."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it and its forks."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
