"""Requests per second of registration, reads and transfers, each in several rounds, and bursts of many at once."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks import figures, load, processes, stack
from benchmarks.figures import Promise
from benchmarks.load import Request, Result
from benchmarks.stack import Parts, Service

RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"
_CONNECTIONS = 16
_BURST = 200
_TICK = 0.01
_MICRO_USDC = 10**6
_WEI = 10**18
_READS = "reads, mixed"
_AT_ONCE = "transfers, answered at once"
_CONFIRMED = "transfers, confirmed"
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("daily", "weekly", "monthly", "per_tx")}


@dataclass(frozen=True, slots=True)
class Agent:
    """A registered agent with a funded wallet and no limits."""

    key: str
    wallet_id: str
    address: str

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Request:
        """Make a request of the agent's; `path` continues the wallet's own."""
        return Request(
            method, f"/v1/wallets/{self.wallet_id}{path}", {"X-API-Key": self.key, **headers}, body
        )


@dataclass(frozen=True, slots=True)
class Round:
    """One round of load: what came of it, and processor milliseconds per request of its parts.

    `ours` is the part of the machine's busy time that was ours: web, database, nodes and the load itself.
    """

    result: Result
    web_ms: float
    database_ms: float
    node_ms: float
    ours: float


def measure(
    made: Parts, service: Service, *, rounds: int, seconds: float, agents: Sequence[Agent]
) -> list[Promise]:
    """Run all loads in alternating rounds, so that what else the machine does hits all of them alike."""
    loads = _loads(agents)
    taken: dict[str, list[Round]] = {name: [] for name in loads}
    idle: list[Result] = []
    with stack.doing_nothing(made) as port:
        for _ in range(rounds):
            idle.append(load.run(port, [[Request("GET", "/")]] * _CONNECTIONS, seconds=seconds))
            for name, lanes in loads.items():
                taken[name].append(_round(made, service, lanes, seconds=seconds))
    figures.heading(f"Requests per second ({_CONNECTIONS} connections; median of {rounds} x {seconds:g} s)")
    nothing = figures.median([result.per_second for result in idle])
    columns = ("req/s", "p50 ms", "p99 ms", "web ms", "db ms", "node ms", "x idle", "others", "alone/s")
    figures.note(f"{'':28} {' '.join(f'{name:>7}' for name in columns)}  errors")
    figures.note(
        f"{'a Flask view that does nothing':28} {nothing:7.0f} "
        f"{_median(idle, 'p50_ms'):7.1f} {_median(idle, 'p99_ms'):7.1f}"
    )
    for name, found in taken.items():
        _print(name, found, nothing)
    figures.note("others: their part of the processors' busy time; alone/s: the rate with that part as ours")
    promised = {"registration": 100, _READS: 500, _AT_ONCE: 50, _CONFIRMED: 50}
    return [
        figures.at_least(f"{name} (measured {_rate(taken[name]):.0f}/s)", _alone(taken[name]), figure, "/s")
        for name, figure in promised.items()
    ]


def burst(service: Service, agents: Sequence[Agent], *, seconds: float) -> list[Promise]:
    """Send many requests at the same moment and count what fails."""
    figures.heading(f"Bursts of {_BURST} parallel requests")
    loads = _loads(agents)
    promises = []
    for name in ("registration", _READS, _AT_ONCE, _CONFIRMED):
        few = loads[name]
        lanes = [few[turn % len(few)] for turn in range(_BURST)]
        result = load.run(service.port, lanes, seconds=seconds)
        figures.note(f"{name:30} {result.per_second:7.0f}/s  p50 {result.p50_ms:7.0f} ms  "
                     f"p99 {result.p99_ms:7.0f} ms  errors {dict(result.failures) or 'none'}")  # fmt: skip
        promises.append(
            figures.at_most(f"failures in a burst of {_BURST}: {name}", sum(result.failures.values()), 0, "")
        )
    return promises


def make_agents(made: Parts, service: Service, count: int) -> list[Agent]:
    """Register agents, lift their limits and fund their wallets on Base."""

    def make(number: int) -> Agent:
        name = json.dumps({"name": f"agent-{number}"}).encode()
        answer = _expect(201, service.call("POST", "/v1/agents/register", name))
        wallet = answer["wallet"]
        agent = Agent(answer["apiKey"], wallet["id"], wallet["addresses"]["base"])
        controls = f"/v1/wallets/{agent.wallet_id}/controls"
        limits = json.dumps(_UNLIMITED).encode()
        _expect(200, service.call("PUT", controls, limits, **{"X-API-Key": agent.key}))
        node = made.nodes["base"]
        node.fund_eth(agent.address, _WEI)
        node.fund_usdc(agent.address, 100 * _MICRO_USDC)
        return agent

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(make, range(count)))


def _loads(agents: Sequence[Agent]) -> dict[str, list[list[Request]]]:
    """Return what each connection sends round and round, by the load's name."""
    movement = {"chain": "base", "to": RECIPIENT, "amount": "0.000001", "currency": "USDC"}
    register = Request("POST", "/v1/agents/register", body={"name": "benchmark"})

    def lanes(*make: Callable[[Agent], Request]) -> list[list[Request]]:
        # Each connection begins at another request of the round, so that the mix is one at any time.
        return [
            [make[(turn + lane) % len(make)](agents[lane % len(agents)]) for turn in range(len(make))]
            for lane in range(_CONNECTIONS)
        ]

    def wallet(agent: Agent) -> Request:
        return agent.request("GET", "")

    def history(agent: Agent) -> Request:
        return agent.request("GET", "/transactions?limit=10")

    def controls(agent: Agent) -> Request:
        return agent.request("GET", "/controls")

    def credit(agent: Agent) -> Request:
        return Request("GET", "/v1/balance", {"X-API-Key": agent.key})

    return {
        "health": [[Request("GET", "/v1/health")]] * _CONNECTIONS,
        "registration": [[register]] * _CONNECTIONS,
        _READS: lanes(wallet, history, controls, credit),
        "  a wallet": lanes(wallet),
        "  ten transactions": lanes(history),
        "  controls and their use": lanes(controls),
        "  credits": lanes(credit),
        "a transfer's dry run": lanes(
            lambda a: a.request("POST", "/transfer", {**movement, "dry_run": True})
        ),
        _AT_ONCE: lanes(lambda a: a.request("POST", "/transfer", movement, Prefer="respond-async")),
        _CONFIRMED: lanes(lambda a: a.request("POST", "/transfer", movement)),
    }


def _round(made: Parts, service: Service, lanes: Sequence[Sequence[Request]], *, seconds: float) -> Round:
    programs = (service.web, made.database.pid, processes.child_named("anvil", made.nodes["base"].url))
    machine, own = processes.machine_seconds(), processes.processor_seconds(os.getpid())
    before = [processes.processor_seconds(pid) for pid in programs]
    result = load.run(service.port, lanes, seconds=seconds)
    spent = [processes.processor_seconds(pid) - then for pid, then in zip(programs, before, strict=True)]
    web, database, node = (seconds / max(1, result.answered) * 1000 for seconds in spent)
    busy = max(_TICK, processes.machine_seconds() - machine)
    ours = min(1.0, max(_TICK, processes.processor_seconds(os.getpid()) - own) / busy)
    return Round(result, web, database, node, ours)


def _print(name: str, rounds: Sequence[Round], nothing: float) -> None:
    rate = _rate(rounds)
    results = [found.result for found in rounds]
    figures.note(
        f"{name:28} {rate:7.0f} {_median(results, 'p50_ms'):7.1f} {_median(results, 'p99_ms'):7.1f} "
        f"{figures.median([found.web_ms for found in rounds]):7.2f} "
        f"{figures.median([found.database_ms for found in rounds]):7.2f} "
        f"{figures.median([found.node_ms for found in rounds]):7.2f} "
        f"{nothing / max(rate, 0.01):7.1f} {1 - figures.median([found.ours for found in rounds]):7.0%} "
        f"{_alone(rounds):7.0f}  {_failures(results)}"
    )


def _rate(rounds: Sequence[Round]) -> float:
    return figures.median([found.result.per_second for found in rounds])


def _alone(rounds: Sequence[Round]) -> float:
    """Return the rate that the same work gives where nobody else uses the processors."""
    return figures.median([found.result.per_second / found.ours for found in rounds])


def _median(results: Sequence[Result], name: str) -> float:
    return figures.median([getattr(result, name) for result in results])


def _failures(results: Sequence[Result]) -> str:
    total: Counter[str] = Counter()
    for result in results:
        total.update(result.failures)
    return ", ".join(f"{count} x {kind}" for kind, count in total.items()) or "none"


def _expect(status: int, answer: tuple[int, bytes]) -> Any:
    if answer[0] != status:
        raise RuntimeError(f"expected {status}: {answer!r}")
    return json.loads(answer[1])
