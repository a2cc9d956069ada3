"""Bottlenecks of two web hosts, three workers and a scheduler on one PostgreSQL and one Redis, by load.

Counts (lock waits, commits, Redis commands and RPC exchanges per request, shares of processor time) are more reliable
than rates: clients, nodes and database run on the same machine.
"""

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import redis

from app.audit_log import actors
from app.config import Settings
from app.extensions import db
from app.factory import create_app
from app.idempotency.service import Claim
from app.platform import keys
from benchmarks import database_waits, load_generator, processes, stack, thresholds, throughput
from benchmarks.database_waits import WaitSamples
from benchmarks.load_generator import Request, Result
from benchmarks.stack import Infrastructure, Service
from benchmarks.thresholds import Threshold
from benchmarks.throughput import RECIPIENT, BenchmarkAgent
from benchmarks.upstream import CHAT, running_upstream

_WEBS, _WORKERS = 2, 3
_DATABASE = "scaling"
_MOVEMENT = {"chain": "base", "to": RECIPIENT, "amount": "0.000001", "currency": "USDC"}
_COUNTER_FLUSH_SECONDS = 6  # what processes count of RPC exchanges reaches Redis every five
_COMMITS = "SELECT xact_commit FROM pg_stat_database WHERE datname = %s"
_MIN_SHARE = 0.01
_DRAIN_SECONDS = 180.0
_RPC_COUNT = re.compile(r'^purser_rpc_seconds_count\{[^}]*chain="base"[^}]*\} ([0-9.]+)$', re.MULTILINE)

ConnectionPlans = Sequence[Sequence[Request]]


@dataclass(frozen=True, slots=True)
class _IdleRates:
    """Work of the workers and the scheduler per second without requests."""

    commits: float
    redis_commands: float


@dataclass(frozen=True, slots=True)
class _Totals:
    """Totals of the machine and its servers at a moment."""

    commits: int
    redis_commands: int
    processor: Mapping[str, float]
    machine: float


def measure(infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Run one load after another."""
    seconds, connections = (1.0, (8,)) if quick else (6.0, (8, 32, 96))
    with running_upstream() as running_stack:
        settings = {
            "OPENAI_API_KEY": "sk-benchmark", "OPENAI_BASE_URL": f"http://127.0.0.1:{running_stack.port}/v1",
            "INITIAL_CREDITS_USD": "100000", "LOG_LEVEL": "WARNING",
        }  # fmt: skip
        environment = infrastructure.migrated(_DATABASE, **settings)
        app = create_app(Settings(**stack.settings_of(environment)))
        with app.app_context():
            master_key = keys.create_master_key(
                actors.shell_actor(), name="bench", owner_email=None, claim=Claim.none()
            ).key
            db.engine.dispose()
        thresholds.print_heading(f"{_WEBS} web hosts, {_WORKERS} workers, 1 scheduler on one PostgreSQL and one Redis")
        with stack.running_service(infrastructure, environment, webs=_WEBS, workers=_WORKERS) as service:
            agents = throughput.make_agents(infrastructure, service, 8 if quick else 32)
            idle = _idle(infrastructure, service, seconds=2 * seconds)
            failures = 0
            for name, build_plan in _loads(agents, master_key).items():
                for count in connections:
                    failures += _run_round(infrastructure, service, name, build_plan(count), seconds=seconds, idle=idle)
            _movements(infrastructure, service, agents, seconds=seconds)
    return [thresholds.at_most("failed requests other than 503", failures, 0, "")]


def _loads(agents: Sequence[BenchmarkAgent], master_key: str) -> dict[str, Callable[[int], ConnectionPlans]]:
    def by_agent(
        make: Callable[[BenchmarkAgent, int], Request], *, only: int | None = None
    ) -> Callable[[int], ConnectionPlans]:
        chosen = agents[:only]
        return lambda count: [[make(chosen[number % len(chosen)], number)] for number in range(count)]

    def reads(count: int) -> ConnectionPlans:
        return [
            [agents[number % len(agents)].request("GET", path) for path in ("", "/transactions?limit=10", "/controls")]
            for number in range(count)
        ]

    def transfer(agent: BenchmarkAgent, _connection: int) -> Request:
        return agent.request("POST", "/transfer", _MOVEMENT, Prefer="respond-async")

    def call(agent: BenchmarkAgent, _connection: int) -> Request:
        return Request("POST", "/v1/gateway/openai/chat/completions", {"X-API-Key": agent.key}, CHAT)

    def administer(_agent: BenchmarkAgent, connection: int) -> Request:
        headers = {"X-Master-Key": master_key}
        return Request("POST", "/v1/platform/agents", headers, {"name": f"made-{connection}"})

    def register(_agent: BenchmarkAgent, _connection: int) -> Request:
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


def _idle(made: Infrastructure, service: Service, *, seconds: float) -> _IdleRates:
    _drain(made)
    before, began = _read_totals(made, service), time.monotonic()
    time.sleep(seconds)
    after, spent = _read_totals(made, service), time.monotonic() - began
    idle = _IdleRates((after.commits - before.commits) / spent, (after.redis_commands - before.redis_commands) / spent)
    thresholds.print_note(
        f"idle: {idle.commits:.0f} commits and {idle.redis_commands:.0f} Redis commands a second, taken off below"
    )
    return idle


def _run_round(
    made: Infrastructure, service: Service, name: str, plans: ConnectionPlans, *, seconds: float, idle: _IdleRates
) -> int:
    """Run one load, print its results, and return how many requests failed."""
    before = _read_totals(made, service)
    with database_waits.sample_waits(made.database, _DATABASE) as seen:
        result = load_generator.run(service.ports, plans, seconds=seconds)
    after = _read_totals(made, service)
    _print(name, len(plans), result, seen, before=before, after=after, idle=idle)
    # A 503 changes nothing and asks for a repetition; it is the answer to too many requests on one row.
    return sum(number for kind, number in result.failures.items() if kind != "503")


def _read_totals(made: Infrastructure, service: Service) -> _Totals:
    with made.database.connect(_DATABASE) as connection:
        row = connection.execute(_COMMITS, [_DATABASE]).fetchone()
    assert row is not None
    with redis.Redis.from_url(made.redis_url) as client:
        commands = int(client.info("stats")["total_commands_processed"])
    groups = {
        "web": service.webs, "workers": (*service.workers, *service.schedulers), "database": (made.database.pid,),
        "nodes": (stack.node_process(made.nodes["base"]),),
        "clients, Redis": (os.getpid(),),
    }  # fmt: skip
    spent = {name: sum(map(processes.processor_seconds, pids)) for name, pids in groups.items()}
    # This process, which runs the clients, is the parent of all others.
    spent["clients, Redis"] -= sum(seconds for name, seconds in spent.items() if name != "clients, Redis")
    return _Totals(row[0], commands, spent, processes.machine_seconds())


def _print(
    name: str, count: int, result: Result, seen: WaitSamples, *, before: _Totals, after: _Totals, idle: _IdleRates
) -> None:
    answered = max(1, result.answered)
    parts = {group: after.processor[group] - before.processor[group] for group in after.processor}
    commits = max(0.0, after.commits - before.commits - idle.commits * result.seconds) / answered
    commands = after.redis_commands - before.redis_commands - idle.redis_commands * result.seconds
    busy = max(0.01, after.machine - before.machine)
    shares = ", ".join(f"{group} {spent / busy:.0%}" for group, spent in parts.items() if spent / busy >= _MIN_SHARE)
    failed = ", ".join(f"{number} x {kind}" for kind, number in result.failures.items()) or "none"
    thresholds.print_note(
        f"{name:26} {count:3} connections {result.per_second:6.0f}/s"
        f"  p50 / p99 {result.p50_ms:5.0f} / {result.p99_ms:5.0f} ms"
        f"  web {parts['web'] * 1000 / answered:5.1f} ms, database {parts['database'] * 1000 / answered:4.1f} ms,"
        f" {commits:4.1f} commits, {max(0.0, commands) / answered:4.1f} Redis commands each; failed: {failed}"
    )
    thresholds.print_note(
        f"{'':26} processors: {shares}; {seen.busy:.1f} of {seen.sessions} sessions busy: {seen.shares(4)};"
        f" waited for locks: {seen.locks(3)}"
    )


def _movements(made: Infrastructure, service: Service, agents: Sequence[BenchmarkAgent], *, seconds: float) -> None:
    """Count the RPC requests of transfers, and time how long three workers need to settle those left pending."""
    _drain(made)
    time.sleep(_COUNTER_FLUSH_SECONDS)
    before = _rpc_count(service)
    plans = [
        [agents[number % len(agents)].request("POST", "/transfer", _MOVEMENT, Prefer="respond-async")]
        for number in range(32)
    ]
    result = load_generator.run(service.ports, plans, seconds=seconds)
    waiting = _pending(made)
    began = time.monotonic()
    left = _drain(made)
    spent = time.monotonic() - began
    time.sleep(_COUNTER_FLUSH_SECONDS)
    asked = _rpc_count(service) - before
    thresholds.print_note(
        f"{result.answered} transfers answered immediately: {waiting} were pending at the end,"
        f" {left} still {spent:.0f} s later"
        f" ({(waiting - left) / max(spent, 0.1):.0f} settled a second by {_WORKERS} workers);"
        f" {asked / max(1, result.answered):.2f} HTTP requests to the node each, including the passes of the workers"
    )


def _pending(made: Infrastructure) -> int:
    with made.database.connect(_DATABASE) as connection:
        row = connection.execute(
            "SELECT count(*) FROM transactions WHERE status = 'pending' AND type <> 'funding'"
        ).fetchone()
    assert row is not None
    return int(row[0])


def _drain(made: Infrastructure) -> int:
    """Wait until nothing is pending or the time is up; return how many are pending."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while (left := _pending(made)) and time.monotonic() < deadline:
        time.sleep(0.25)
    return left


def _rpc_count(service: Service) -> float:
    _, body = service.call("GET", "/metrics")
    return sum(float(count) for count in _RPC_COUNT.findall(body.decode()))
