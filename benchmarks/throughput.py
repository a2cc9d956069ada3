"""Requests per second of registration, reads and transfers, in several rounds, and bursts of parallel requests."""

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from benchmarks import load_generator, processes, report, stack, thresholds
from benchmarks import rounds as alternating
from benchmarks.load_generator import Request
from benchmarks.rounds import Load, Plans
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold

RECIPIENT = "0x00000000000000000000000000000000C0FFEE00"
_CONNECTIONS = 16
_BURST = 200
_MAX_MB = 225
_MICRO_USDC = 10**6
_WEI = 10**18
_REGISTRATION = "Registrations"
_READS = "Reads, mixed"
_UNCONFIRMED = "Transfers, answered immediately"
_CONFIRMED = "Transfers, confirmed"
_PROMISED = {_REGISTRATION: 300, _READS: 1200, _UNCONFIRMED: 110, _CONFIRMED: 80}
_UNLIMITED = {f"{window}_limit_usd": 0 for window in ("daily", "weekly", "monthly", "per_tx")}


@dataclass(frozen=True, slots=True)
class BenchmarkAgent:
    """A registered agent with a funded wallet and no limits."""

    agent_id: str
    key: str
    wallet_id: str
    address: str

    def request(self, method: str, path: str, body: object = None, **headers: str) -> Request:
        """Return a request of the agent; `path` is relative to the wallet."""
        return Request(method, f"/v1/wallets/{self.wallet_id}{path}", {"X-API-Key": self.key, **headers}, body)


def measure(
    infrastructure: Infrastructure, service: Service, *, rounds: int, seconds: float, agents: Sequence[BenchmarkAgent]
) -> list[Threshold]:
    """Run all loads in alternating rounds."""
    thresholds.print_heading(f"Requests of agents: medians of {rounds} alternating rounds of {seconds:g} s")
    node = stack.node_process(infrastructure.nodes["base"])
    roots = {"web": service.web, "database": infrastructure.database.pid, "node": node}
    loads = [Load(name, service.port, _fixed(plans), roots) for name, plans in _loads(agents).items()]
    found = alternating.measure(loads, connections=(_CONNECTIONS,), rounds=rounds, seconds=seconds)
    if rounds > 1:
        report.keep_table(found)
    return [
        thresholds.at_least(
            f"{name}, {_CONNECTIONS} connections", found[name][_CONNECTIONS].alone_per_second, rate, "/s"
        )
        for name, rate in _PROMISED.items()
    ]


def _fixed(plans: Plans) -> Callable[[int], Plans]:
    return lambda _connections: plans


def burst(service: Service, agents: Sequence[BenchmarkAgent], *, seconds: float) -> list[Threshold]:
    """Send many parallel requests and count failures."""
    thresholds.print_heading(f"Bursts of {_BURST} parallel requests")
    loads = _loads(agents)
    promises = []
    for name in _PROMISED:
        few = loads[name]
        plans = [few[number % len(few)] for number in range(_BURST)]
        result = load_generator.run(service.port, plans, seconds=seconds)
        thresholds.print_note(f"{name:30} {result.per_second:7.0f}/s  p50 {result.p50_ms:7.0f} ms  "
                     f"p99 {result.p99_ms:7.0f} ms  errors {dict(result.failures) or 'none'}")  # fmt: skip
        promises.append(
            thresholds.at_most(f"failures in a burst of {_BURST}: {name}", sum(result.failures.values()), 0, "")
        )
    return promises


def make_agents(made: Infrastructure, service: Service, count: int) -> list[BenchmarkAgent]:
    """Register agents, remove their limits and fund their wallets on Base."""

    def make(number: int) -> BenchmarkAgent:
        name = json.dumps({"name": f"agent-{number}"}).encode()
        answer = _expect(201, service.call("POST", "/v1/agents/register", name))
        wallet = answer["wallet"]
        agent = BenchmarkAgent(answer["agentId"], answer["apiKey"], wallet["id"], wallet["addresses"]["base"])
        controls = f"/v1/wallets/{agent.wallet_id}/controls"
        limits = json.dumps(_UNLIMITED).encode()
        _expect(200, service.call("PUT", controls, limits, **{"X-API-Key": agent.key}))
        node = made.nodes["base"]
        node.fund_eth(agent.address, _WEI)
        node.fund_usdc(agent.address, 100 * _MICRO_USDC)
        return agent

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(make, range(count)))


def _loads(agents: Sequence[BenchmarkAgent]) -> dict[str, Plans]:
    """Return the requests that each connection repeats, by name of the load."""
    movement = {"chain": "base", "to": RECIPIENT, "amount": "0.000001", "currency": "USDC"}
    register = Request("POST", "/v1/agents/register", body={"name": "benchmark"})

    def plans(*make: Callable[[BenchmarkAgent], Request]) -> list[list[Request]]:
        # Each connection starts at a different request, so that the mix is constant.
        return [
            [make[(step + number) % len(make)](agents[number % len(agents)]) for step in range(len(make))]
            for number in range(_CONNECTIONS)
        ]

    def wallet(agent: BenchmarkAgent) -> Request:
        return agent.request("GET", "")

    def history(agent: BenchmarkAgent) -> Request:
        return agent.request("GET", "/transactions?limit=10")

    def controls(agent: BenchmarkAgent) -> Request:
        return agent.request("GET", "/controls")

    def credit(agent: BenchmarkAgent) -> Request:
        return Request("GET", "/v1/balance", {"X-API-Key": agent.key})

    return {
        "Health": [[Request("GET", "/v1/health")]] * _CONNECTIONS,
        _REGISTRATION: [[register]] * _CONNECTIONS,
        _READS: plans(wallet, history, controls, credit),
        _UNCONFIRMED: plans(lambda a: a.request("POST", "/transfer", movement, Prefer="respond-async")),
        _CONFIRMED: plans(lambda a: a.request("POST", "/transfer", movement)),
    }


def memory(service: Service) -> list[Threshold]:
    """Compare the highest memory of each process after the work."""
    thresholds.print_heading("Memory of processes after work (MB; PSS divides what forks share)")
    parent, *serving = processes.tree(service.web)
    highest: dict[str, float] = {}
    kinds = [("web", parent), *(("web", pid) for pid in serving)]
    for kind, pid in [*kinds, ("worker", service.worker), ("worker", service.scheduler)]:
        found = processes.memory(pid)
        thresholds.print_note(
            f"{kind:10} resident {found.resident_mb:4.0f}, highest {found.peak_mb:4.0f}, "
            f"proportional {found.proportional_mb:4.0f}"
        )
        highest[kind] = max(highest.get(kind, 0.0), found.peak_mb)
    return [
        thresholds.at_most(f"{kind} process, resident at most", each, _MAX_MB, "MB") for kind, each in highest.items()
    ]


def _expect(status: int, answer: tuple[int, bytes]) -> Any:
    if answer[0] != status:
        raise RuntimeError(f"expected {status}: {answer!r}")
    return json.loads(answer[1])
