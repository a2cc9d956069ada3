"""Two web hosts, three workers and a scheduler on one PostgreSQL and one Redis: what gives way first, under which load.

Trust what is counted (who waits for what, commits, Redis commands and RPC exchanges for each request, the parts of the
processors' time) before any rate: this machine carries clients, nodes and database as well.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import redis

from app.config import Settings
from app.extensions import db
from app.factory import create_app
from app.platform import actors, keys
from benchmarks import figures, gateway, load, processes, stack, throughput, waits
from benchmarks.figures import Promise
from benchmarks.load import Request, Result
from benchmarks.stack import Parts, Service
from benchmarks.throughput import RECIPIENT, Agent
from benchmarks.waits import Seen

_WEBS, _WORKERS = 2, 3
_DATABASE = "scaling"
_MOVEMENT = {"chain": "base", "to": RECIPIENT, "amount": "0.000001", "currency": "USDC"}
_HANDED_OVER_SECONDS = 6  # what processes count of RPC exchanges reaches Redis every five
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
_LEAST_SHARE = 0.01
_DRAIN_SECONDS = 180.0
_EXCHANGES = re.compile(r'^purser_rpc_seconds_count\{[^}]*chain="base"[^}]*\} ([0-9.]+)$', re.MULTILINE)

Lanes = Sequence[Sequence[Request]]


@dataclass(frozen=True, slots=True)
class _Idle:
    """What the workers and the scheduler do each second while nobody asks for anything."""

    commits: float
    redis_commands: float


@dataclass(frozen=True, slots=True)
class _Counted:
    """Totals of the machine and its servers at a moment."""

    commits: int
    redis_commands: int
    processor: Mapping[str, float]
    machine: float


def measure(made: Parts, *, quick: bool) -> list[Promise]:
    """Put one load after the other on all of it."""
    seconds, connections = (1.0, (8,)) if quick else (6.0, (8, 32, 96))
    with gateway.upstream() as standing:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"http://127.0.0.1:{standing.port}/v1",
            "INITIAL_CREDITS_USD": "100000", "LOG_LEVEL": "WARNING", "RATE_LIMIT_PER_KEY": "",
        }  # fmt: skip
        environment = made.migrated(_DATABASE, **settings)
        app = create_app(Settings(**stack.settings_of(environment)))
        with app.app_context():
            master_key = keys.create_master_key(actors.at_the_shell(), name="bench", owner_email=None).key
            db.engine.dispose()
        figures.heading(f"{_WEBS} web hosts, {_WORKERS} workers, 1 scheduler on one PostgreSQL and one Redis")
        with stack.running(made, environment, webs=_WEBS, workers=_WORKERS) as service:
            agents = throughput.make_agents(made, service, 8 if quick else 32)
            idle = _idle(made, service, seconds=2 * seconds)
            failures = 0
            for name, lanes_of in _loads(agents, master_key).items():
                for count in connections:
                    failures += _round(made, service, name, lanes_of(count), seconds=seconds, idle=idle)
            _movements(made, service, agents, seconds=seconds)
    return [figures.at_most("requests that failed otherwise than by 503", failures, 0, "")]


def _loads(agents: Sequence[Agent], master_key: str) -> dict[str, Callable[[int], Lanes]]:
    def by_agent(make: Callable[[Agent, int], Request], *, only: int | None = None) -> Callable[[int], Lanes]:
        chosen = agents[:only]
        return lambda count: [[make(chosen[lane % len(chosen)], lane)] for lane in range(count)]

    def reads(count: int) -> Lanes:
        return [
            [
                agents[lane % len(agents)].request("GET", path)
                for path in ("", "/transactions?limit=10", "/controls")
            ]
            for lane in range(count)
        ]

    def transfer(agent: Agent, _lane: int) -> Request:
        return agent.request("POST", "/transfer", _MOVEMENT, Prefer="respond-async")

    def call(agent: Agent, _lane: int) -> Request:
        return Request("POST", "/v1/gateway/openai/chat/completions", {"X-API-Key": agent.key}, gateway.CHAT)

    def administer(_agent: Agent, lane: int) -> Request:
        headers = {"X-Master-Key": master_key}
        return Request("POST", "/v1/platform/agents", headers, {"name": f"made-{lane}"})

    def register(_agent: Agent, _lane: int) -> Request:
        return Request("POST", "/v1/agents/register", body={"name": "benchmark"})

    return {
        "reads": reads,
        "calls of many agents": by_agent(call),
        "calls of one agent": by_agent(call, only=1),
        "transfers of many wallets": by_agent(transfer),
        "transfers of one wallet": by_agent(transfer, only=1),
        "registrations": by_agent(register),
        "acts of operators": by_agent(administer),
    }


def _idle(made: Parts, service: Service, *, seconds: float) -> _Idle:
    _drain(made)
    before, began = _counted(made, service), time.monotonic()
    time.sleep(seconds)
    after, spent = _counted(made, service), time.monotonic() - began
    idle = _Idle(
        (after.commits - before.commits) / spent,
        (after.redis_commands - before.redis_commands) / spent,
    )
    figures.note(
        f"at rest: {idle.commits:.0f} commits and {idle.redis_commands:.0f} Redis commands a second, taken off below"
    )
    return idle


def _round(made: Parts, service: Service, name: str, lanes: Lanes, *, seconds: float, idle: _Idle) -> int:
    """Put one load on, print a line on it, and return how many requests failed."""
    before = _counted(made, service)
    with waits.watched(made.database, _DATABASE) as seen:
        result = load.run(service.ports, lanes, seconds=seconds)
    after = _counted(made, service)
    _print(name, len(lanes), result, seen, before=before, after=after, idle=idle)
    # 503 tells a client to come again, with nothing done; too many at one row are answered so.
    return sum(number for kind, number in result.failures.items() if kind != "503")


def _counted(made: Parts, service: Service) -> _Counted:
    with made.database.connect(_DATABASE) as connection:
        row = connection.execute(_COMMITS, [_DATABASE]).fetchone()
    assert row is not None
    with redis.Redis.from_url(made.redis_url) as client:
        commands = int(client.info("stats")["total_commands_processed"])
    groups = {
        "web": service.webs, "workers": (*service.workers, *service.schedulers), "database": (made.database.pid,),
        "nodes": (processes.child_named("anvil", made.nodes["base"].url),),
        "clients, Redis": (os.getpid(),),
    }  # fmt: skip
    spent = {name: sum(map(processes.processor_seconds, pids)) for name, pids in groups.items()}
    # The clients' process is the parent of all the others.
    spent["clients, Redis"] -= sum(seconds for name, seconds in spent.items() if name != "clients, Redis")
    return _Counted(row[0], commands, spent, processes.machine_seconds())


def _print(
    name: str, count: int, result: Result, seen: Seen, *, before: _Counted, after: _Counted, idle: _Idle
) -> None:
    answered = max(1, result.answered)
    parts = {group: after.processor[group] - before.processor[group] for group in after.processor}
    commits = max(0.0, after.commits - before.commits - idle.commits * result.seconds) / answered
    commands = after.redis_commands - before.redis_commands - idle.redis_commands * result.seconds
    busy = max(0.01, after.machine - before.machine)
    shares = ", ".join(
        f"{group} {spent / busy:.0%}" for group, spent in parts.items() if spent / busy >= _LEAST_SHARE
    )
    failed = ", ".join(f"{number} x {kind}" for kind, number in result.failures.items()) or "none"
    figures.note(
        f"{name:26} {count:3} connections {result.per_second:6.0f}/s"
        f"  p50 / p99 {result.p50_ms:5.0f} / {result.p99_ms:5.0f} ms"
        f"  web {parts['web'] * 1000 / answered:5.1f} ms, database {parts['database'] * 1000 / answered:4.1f} ms,"
        f" {commits:4.1f} commits, {max(0.0, commands) / answered:4.1f} Redis commands each; failed: {failed}"
    )
    figures.note(
        f"{'':26} processors: {shares}; {seen.busy:.1f} of {seen.sessions} sessions busy: {seen.shares(4)};"
        f" waited for locks: {seen.locks(3)}"
    )


def _movements(made: Parts, service: Service, agents: Sequence[Agent], *, seconds: float) -> None:
    """Count what movements ask the chain, and how long three workers need for what the web has left behind."""
    _drain(made)
    time.sleep(_HANDED_OVER_SECONDS)
    before = _exchanges(service)
    lanes = [
        [agents[lane % len(agents)].request("POST", "/transfer", _MOVEMENT, Prefer="respond-async")]
        for lane in range(32)
    ]
    result = load.run(service.ports, lanes, seconds=seconds)
    waiting = _pending(made)
    began = time.monotonic()
    left = _drain(made)
    spent = time.monotonic() - began
    time.sleep(_HANDED_OVER_SECONDS)
    asked = _exchanges(service) - before
    figures.note(
        f"{result.answered} transfers answered at once: {waiting} were pending at the end,"
        f" {left} still {spent:.0f} s later"
        f" ({(waiting - left) / max(spent, 0.1):.0f} settled a second by {_WORKERS} workers);"
        f" {asked / max(1, result.answered):.2f} HTTP requests to the node for each, passes of the workers included"
    )


def _pending(made: Parts) -> int:
    with made.database.connect(_DATABASE) as connection:
        row = connection.execute(
            "SELECT count(*) FROM transactions WHERE status = 'pending' AND type <> 'funding'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _drain(made: Parts) -> int:
    """Wait until nothing is pending, or it takes too long; return how many are."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while (left := _pending(made)) and time.monotonic() < deadline:
        time.sleep(0.25)
    return left


def _exchanges(service: Service) -> float:
    _, body = service.call("GET", "/metrics")
    return sum(float(count) for count in _EXCHANGES.findall(body.decode()))
