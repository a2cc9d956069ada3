"""Processes that are killed on purpose: a story runs in a child that dies at a point named beforehand.

A point is a step of a story (a verb of a port, or a commit), before or after it, the n-th time it is reached. Every
movement can reuse this: hand over a function that takes the application, and the points that it passes.
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
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

import time_machine
from flask import Flask
from sqlalchemy import event
from sqlalchemy.engine import Engine

from app.adapters.evm.chain import EvmChain
from app.adapters.evm.deployments import Deployment
from app.adapters.faucet_http import HttpFaucet
from app.adapters.jupiter.exchange import JupiterExchange
from app.adapters.solana.chain import SolanaChain
from app.adapters.solana.deployments import DEPLOYMENTS as SOLANA_DEPLOYMENTS
from app.adapters.uniswap.exchange import UniswapExchange
from app.core.chains import ChainName
from app.core.money import TokenAmount
from app.extensions import db
from app.jobs import JobName
from app.ports.faucet import Faucet
from app.ports.swaps import Exchange
from app.wallets import custody
from sandbox.evm import EvmNode
from tests.support.applications import RecordingQueue, bridges_on, make_app, settings_for
from tests.support.chains import CONFIRMATIONS
from tests.support.faults import FaultyBridge, FaultyChain, FaultyExchange, When, kill
from tests.support.payments import till_of
from tests.support.servers import _tie_to_the_tests

STORY_SECONDS = 60.0
COMMIT = "commit"
_ALWAYS = 10**9
_VERBS = (
    "balances",
    "broadcast",
    "cancellation",
    "deposits",
    "draft",
    "head",
    "mark",
    "orphaned",
    "outcomes",
    "rebroadcast",
    "replacement",
    "sign",
)

_EXCHANGE_VERBS = ("quote", "draft", "sign")
_BRIDGE_VERBS = ("quote", "prepare", "sign", "follow", "deliver")

Story = Callable[[Flask], Any]
Wired = TypeVar("Wired", FaultyBridge, FaultyChain, FaultyExchange)


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """Where a process dies: before or after the `nth` time that it takes this step."""

    step: str
    when: When
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.when} {self.step}" + (f" {self.nth}" if self.nth > 1 else "")


def points(*steps: str) -> list[Point]:
    """Return the points before and after each step, counting the steps of one name."""
    found: list[Point] = []
    for number, step in enumerate(steps):
        nth = steps[: number + 1].count(step)
        found += [Point(step, "before", nth), Point(step, "after", nth)]
    return found


@dataclass(slots=True)
class Tripwire:
    """Counts the steps that a process takes, and kills it at its point."""

    point: Point | None = None
    passed: list[Point] = field(default_factory=list)
    _counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def step(self, name: str, when: When) -> None:
        """Pass a step, or die there."""
        with self._lock:
            self._counts[name, when] += 1
            here = Point(name, when, self._counts[name, when])
            self.passed.append(here)
        if here == self.point:
            kill()


class WiredQueue(RecordingQueue):
    """A queue whose `put` is a step."""

    def __init__(self, wire: Tripwire) -> None:
        super().__init__()
        self._wire = wire

    def put(self, job: JobName, *arguments: str) -> bool:
        self._wire.step("put", "before")
        taken = super().put(job, *arguments)
        self._wire.step("put", "after")
        return taken


class WiredFaucet:
    """A faucet whose `pay` is a step."""

    def __init__(self, real: Faucet, wire: Tripwire) -> None:
        self._real = real
        self._wire = wire

    def pay(self, reference: str, *, chain: ChainName, address: str, amount: TokenAmount) -> None:
        self._wire.step("pay", "before")
        self._real.pay(reference, chain=chain, address=address, amount=amount)
        self._wire.step("pay", "after")


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """Where a chain's node listens; unlike the node itself it can be handed to another process."""

    name: ChainName
    url: str
    deployment: Deployment

    @classmethod
    def of(cls, node: EvmNode) -> NodeAddress:
        return cls(ChainName(node.name), node.url, node.deployment)

    def chain(self) -> EvmChain:
        return EvmChain(
            self.name, self.deployment, rpc_urls=[self.url], deposit_confirmations=CONFIRMATIONS[self.name]
        )

    def exchange(self) -> Exchange:
        return UniswapExchange(self.chain())


@dataclass(frozen=True, slots=True)
class SolanaAddress:
    """Where a Solana node listens."""

    url: str
    jupiter_url: str = "http://127.0.0.1:1"
    name: ChainName = ChainName.SOLANA

    def chain(self) -> SolanaChain:
        return SolanaChain(SOLANA_DEPLOYMENTS["sandbox"], rpc_urls=[self.url])

    def exchange(self) -> Exchange:
        return JupiterExchange(self.chain(), self.jupiter_url)


@dataclass(frozen=True, slots=True)
class Service:
    """All that a process needs to run the service: any number may run at once, or one after another."""

    database_url: str
    nodes: tuple[NodeAddress | SolanaAddress, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    faucet_url: str | None = None

    def parts(self, wire: Tripwire) -> dict[str, Any]:
        """Make the ports, wired to kill the process."""
        chains = {node.name: _wired(FaultyChain(node.chain()), wire) for node in self.nodes}
        exchanges = {
            node.name: _wired(FaultyExchange(node.exchange()), wire, verbs=_EXCHANGE_VERBS)
            for node in self.nodes
        }
        tills = {name: till_of(chain) for name, chain in chains.items()}
        settings = settings_for(self.database_url, **self.settings)
        bridges = {
            route: tuple(_wired(FaultyBridge(way), wire, verbs=_BRIDGE_VERBS) for way in ways)
            for route, ways in bridges_on(settings, chains).items()
        }
        parts: dict[str, Any] = {
            "chains": chains, "exchanges": exchanges, "bridges": bridges, "tills": tills, "queue": WiredQueue(wire),
        }  # fmt: skip
        if self.faucet_url:
            parts["faucet"] = WiredFaucet(HttpFaucet(self.faucet_url), wire)
        return parts

    def app(self, wire: Tripwire) -> Flask:
        """Make the application on these ports."""
        return make_app(settings_for(self.database_url, **self.settings), **self.parts(wire))


def _wired(faulty: Wired, wire: Tripwire, *, verbs: Sequence[str] = _VERBS) -> Wired:
    for verb in verbs:
        faulty.fail(verb, "before", lambda verb=verb: wire.step(verb, "before"), times=_ALWAYS)  # type: ignore[misc]
        faulty.fail(verb, "after", lambda verb=verb: wire.step(verb, "after"), times=_ALWAYS)  # type: ignore[misc]
    return faulty


@dataclass(frozen=True, slots=True)
class End:
    """How a process ended: what its story returned and which points it passed, or that it was killed."""

    killed: bool
    answer: Any = None
    passed: tuple[Point, ...] = ()


def run(service: Service, story: Story, point: Point | None = None, *, at: datetime | None = None) -> End:
    """Run a story in a process of its own, at a time of its own if asked, and await its end.

    Raises: AssertionError when the process ended in any other way than by its story or its point.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = _context().Process(target=_live, args=(service, story, point, at, sender), daemon=True)
    child.start()
    sender.close()
    try:
        answer, passed = receiver.recv() if receiver.poll(STORY_SECONDS) else (None, ())
    except EOFError:
        answer, passed = None, ()
    child.join(STORY_SECONDS)
    killed = child.exitcode == -signal.SIGKILL
    if child.exitcode is None:
        child.kill()
        child.join()
    if not killed and child.exitcode != 0:
        raise AssertionError(f"the process ended with {child.exitcode}")
    return End(killed, answer, tuple(passed))


def _context() -> ForkServerContext:
    """Return the way to start processes: forks of a small server that has imported the service already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "tests.support.warm"])
    return context


def _live(
    service: Service, story: Story, point: Point | None, at: datetime | None, answer: Connection
) -> None:
    wire = Tripwire(point)
    app = service.app(wire)
    with app.app_context(), time_machine.travel(at, tick=True) if at else nullcontext():
        # Asked once per process, and of no interest to any story.
        custody.assert_network()
        # Bytes on the way to the database are not its word: these two stand around the word itself.
        event.listen(Engine, "commit", lambda _connection: wire.step(COMMIT, "before"))
        event.listen(db.session, "after_commit", lambda _session: wire.step(COMMIT, "after"))
        answer.send((story(app), tuple(wire.passed)))
    # No clean-up either: nothing that matters may depend on it.
    os._exit(0)


def ask(
    app: Flask, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
) -> tuple[int, Any]:
    """Be a story: one HTTP request; return status and body."""
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
    """Be a story: all requests at the same moment, each in a thread of its own; answers in the same order.

    `start` holds several processes back until each of them is ready.
    """
    ready = threading.Barrier(len(requests) + 1)

    def one(asked: Asked) -> tuple[int, Any]:
        ready.wait(STORY_SECONDS)
        return ask(app, asked.method, asked.path, asked.body, asked.headers)

    with ThreadPoolExecutor(len(requests)) as threads:
        answers = [threads.submit(one, asked) for asked in requests]
        if start is not None:
            start.wait(STORY_SECONDS)
        ready.wait(STORY_SECONDS)
        return [answer.result() for answer in answers]


def crowds(service: Service, *shares: Sequence[Asked]) -> list[tuple[int, Any]]:
    """Let as many processes as there are shares ask at the same moment; return all answers."""
    start = _context().Barrier(len(shares))
    with ThreadPoolExecutor(len(shares)) as threads:
        ends = list(
            threads.map(lambda share: run(service, partial(crowd, requests=share, start=start)), shares)
        )
    return [answer for end in ends for answer in end.answer]


def work(_app: Flask, job: Callable[..., None], arguments: tuple[str, ...]) -> None:
    """Be a story: one job of the workers."""
    job(*arguments)


class Program:
    """A program of the service or beside it, that a test starts, kills and starts again."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def ensure(self) -> None:
        """Start it unless it runs."""
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
        """Send a signal to the program and what it has forked."""
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signum)

    def resume(self) -> None:
        """Let a stopped program go on."""
        self.send(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, with what it has forked."""
        self.send(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
