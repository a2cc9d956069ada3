"""Soak: everything that `./run` starts, on PostgreSQL, under mixed traffic, kills, cut connections and slow nodes.

In the first half processes are killed; in the second they live, so that the memory of each is compared with its own.
Afterwards nothing may be pending, the audits must pass, and the records must agree with the chains.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from app.config import Settings
from app.core.chains import ChainName
from app.extensions import db
from app.factory import create_app
from app.payments import treasury
from app.state import app_state
from benchmarks import chain_records, idle, processes, stack, thresholds
from benchmarks.idle import LauncherRun
from benchmarks.soak_traffic import Traffic
from benchmarks.stack import ROOT, Infrastructure
from benchmarks.thresholds import Threshold
from benchmarks.upstream import running_upstream
from launcher.instance import read_record
from launcher.settings import read_dotenv
from workers import sweeps

_DATABASE = "soak"
_FOLDER = ROOT / "var" / "soak"
_KILLED = ("web", "web, serving", "worker", "scheduler", "shopper", "redis")
_SLOWED = ("anvil", "solana")
_KILL_SECONDS = 20.0
"""The mean time between two kills."""
_SLOW_SECONDS = 45.0
"""The mean time between two slow nodes."""
_SLOW_FOR_SECONDS = (1.0, 8.0)
_EXPLAINED_SECONDS = 30
"""An error line is explained by a kill or a slow node that began at most this long before it."""
_SAMPLE_SECONDS = 15.0
_WARM_UP_SECONDS = 600.0
_MAX_GROWTH_PERCENT = 5.0
_QUIET_SECONDS = 600.0
_SKEW = timedelta(seconds=2)
_MOST_PRINTED = 12
_SERVICE = _KILLED[:-1]
_PLAIN_ERROR = re.compile(r"Traceback|\[ERROR\]|\[CRITICAL\]|Error\b")
_ENDED = re.compile(r"^\w+ +\| ended with status")
_ERROR_LEVELS = ("error", "critical")
_PAID_TWICE = """
    SELECT string_agg(id::text, ' ') FROM transactions
    WHERE type IN ('transfer', 'withdrawal', 'swap') AND amount_units > 0 AND coalesce(kind, '') <> 'bridge_leg'
        AND status = 'confirmed'
    GROUP BY chain, currency, amount_units HAVING count(*) > 1
"""
_NOT_FINAL = """
    SELECT (SELECT count(*) FROM transactions WHERE status = 'pending'),
           (SELECT count(*) FROM credit_holds WHERE state = 'held'),
           (SELECT count(*) FROM payments WHERE status = 'settling'),
           (SELECT count(*) FROM topups WHERE closed_at IS NULL)
"""


@dataclass(frozen=True, slots=True)
class Disturbance:
    """A kill, or a node that was slow until a moment."""

    at: datetime
    what: str
    until: datetime


class _Disturber:
    """Kills and slows processes of the launcher, by choices that a seed repeats."""

    def __init__(self, run: LauncherRun, *, seed: int, kill_seconds: float, seconds: float) -> None:
        self._run = run
        self._stop = threading.Event()
        self.done: list[Disturbance] = []
        self._threads = [
            threading.Thread(target=self._repeat, args=(random.Random(f"{seed} {action.__name__}"), *rest))
            for action, *rest in (
                (self._kill, self._kill, _KILL_SECONDS, kill_seconds),
                (self._slow, self._slow, _SLOW_SECONDS, seconds),
            )
        ]

    def start(self) -> None:
        """Start."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; all processes continue."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _repeat(self, draw: random.Random, act: Any, mean: float, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stop.wait(draw.expovariate(1 / mean)) and time.monotonic() < end:
            act(random.Random(draw.random()))

    def _kill(self, draw: random.Random) -> None:
        name = draw.choice(_KILLED)
        if pids := service_pids(self._run.process.pid).get(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(draw.choice(pids), signal.SIGKILL)
                self._note(f"kill {name}", 0)

    def _slow(self, draw: random.Random) -> None:
        pids = service_pids(self._run.process.pid)
        name, pid = draw.choice([(name, pid) for name in _SLOWED for pid in pids[name]])
        seconds = draw.uniform(*_SLOW_FOR_SECONDS)
        self._note(f"slow {name}", seconds)
        os.kill(pid, signal.SIGSTOP)
        self._stop.wait(seconds)
        os.kill(pid, signal.SIGCONT)

    def _note(self, what: str, seconds: float) -> None:
        now = datetime.now(UTC)
        self.done.append(Disturbance(now, what, now + timedelta(seconds=seconds)))


class _MemorySamples:
    """Resident memory of each process of the service over time."""

    def __init__(self, run: LauncherRun) -> None:
        self._run = run
        self.since = 0.0
        """The end of the warm-up after the last kill."""
        self._samples: defaultdict[tuple[str, int], list[tuple[float, float]]] = defaultdict(list)

    def take(self) -> None:
        """Sample every process."""
        now = time.monotonic()
        for name, pids in service_pids(self._run.process.pid).items():
            for pid in pids:
                # A process may end while it is read.
                with contextlib.suppress(OSError, KeyError):
                    megabytes = processes.memory(pid).resident_mb
                    self._samples[name, pid].append((now, megabytes))

    def growth(self) -> dict[str, tuple[float, float]]:
        """Return by name the median MB of the first and the second half of the time since the warm-up.

        Only processes that lived through all of it count, so that each is compared with itself.
        """
        since = self.since
        end = max((found[-1][0] for found in self._samples.values()), default=since)
        halves: defaultdict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        for (name, _pid), found in self._samples.items():
            if found[0][0] <= since and found[-1][0] == end:
                for at, megabytes in found:
                    if at >= since:
                        halves[name][at >= (since + end) / 2].append(megabytes)
        return {
            name: (thresholds.median(first), thresholds.median(second))
            for name, (first, second) in sorted(halves.items())
            if first and second
        }


def service_pids(root: int) -> dict[str, list[int]]:
    """Return the processes of a launcher by name; of the web processes, the first is the parent of the others."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for pid in processes.tree(root):
        with contextlib.suppress(OSError):
            name = idle.name_of(pid)
            found["web, serving" if name == "web" and found["web"] else name].append(pid)
    return found


def measure(infrastructure: Infrastructure, *, quick: bool, minutes: float, rate: float, seed: int) -> list[Threshold]:
    """Run the soak; write its log and report to `var/soak`."""
    minutes = 1 if quick else minutes
    _FOLDER.mkdir(parents=True, exist_ok=True)
    thresholds.print_heading(f"Soak: {minutes:g} minutes at {rate:g} requests a second, seed {seed}")
    with contextlib.ExitStack() as running:
        folder = infrastructure.folder / "soak"
        folder.mkdir()
        upstream = running.enter_context(running_upstream(stream_seconds=2))
        settings = {
            "DATABASE_URL": infrastructure.database.create_database(_DATABASE),
            "OPENAI_API_KEY": "sk-soak", "OPENAI_BASE_URL": f"{upstream.url}/v1",
            "INITIAL_CREDITS_USD": "100000", "UPSTREAM_READ_TIMEOUT_SECONDS": "20",
        }  # fmt: skip
        run = running.enter_context(idle.running_launcher(folder, **settings))
        running.callback(lambda: _keep_evidence(infrastructure, run.log, folder / "var" / "sandbox"))
        run.await_welcome()
        secrets = read_dotenv(folder / "var" / "secrets.env")
        settings |= {"NETWORK": "sandbox", **secrets, **read_record(folder / "var" / "launcher.json")["settings"]}
        traffic = Traffic(run.port, settings, master_key=secrets["BOOTSTRAP_MASTER_KEY"], seed=seed, rate=rate)
        traffic.prepare(upstream.url)
        app = create_app(Settings(**stack.settings_of(settings)))
        with app.app_context():
            for chain, native in (("base", "ETH"), ("ethereum", "ETH"), ("solana", "SOL")):
                traffic.give(treasury.settler(ChainName(chain)), chain, native, "50")
        disturber = _Disturber(run, seed=seed, kill_seconds=minutes * 30, seconds=minutes * 60)
        samples = _MemorySamples(run)
        _run_load(infrastructure, traffic, disturber, samples, seconds=minutes * 60)
        left = _await_quiet(infrastructure)
        with app.app_context():
            problems = {
                "not final after the end": [str(each) for each in left if each],
                **_compare(infrastructure, settings, folder / "var" / "sandbox" / "faucet.sqlite"),
            }
            db.engine.dispose()
        problems["violations of audits"] += _failing_commands(run, folder, settings)
        problems["payments made twice"] += [str(ids) for ids in traffic.by_key.values() if len(ids) > 1]
        log = run.log.read_text(errors="replace").splitlines()
        problems |= {
            "unexpected answers": traffic.unexpected,
            "error lines without a kill or slow node": unexplained(log, disturber.done),
            "processes that ended by themselves": [line for line in log if _ENDED.search(line)],
        }
        return _report(traffic, disturber, samples, problems, minutes=minutes, seed=seed)


def _keep_evidence(made: Infrastructure, log: Path, chains: Path) -> None:
    """Copy the log, the faucet's ledger, the chains as saved last, and the rows of all movements."""
    shutil.copy(log, _FOLDER / "run.log")
    shutil.copytree(chains, _FOLDER / "sandbox", dirs_exist_ok=True)
    with made.database.connect(_DATABASE) as connection:
        chain_records.save(connection, _FOLDER)


def _run_load(
    made: Infrastructure, traffic: Traffic, disturber: _Disturber, samples: _MemorySamples, *, seconds: float
) -> None:
    started = time.monotonic()
    samples.since = started + seconds / 2 + min(_WARM_UP_SECONDS, seconds / 6)
    traffic.start()
    disturber.start()
    try:
        minute, sampled = 1, 0.0
        while (elapsed := time.monotonic() - started) < seconds:
            if elapsed - sampled >= _SAMPLE_SECONDS:
                sampled = elapsed
                samples.take()
            if elapsed >= minute * 60:
                _print_progress(made, minute, traffic, disturber)
                minute += 1
            time.sleep(0.5)
        samples.take()
    finally:
        disturber.stop()
        traffic.stop()


def _print_progress(made: Infrastructure, minute: int, traffic: Traffic, disturber: _Disturber) -> None:
    statuses: Counter[int] = Counter()
    for (_action, status), count in list(traffic.outcomes.items()):
        statuses[status] += count
    found = ", ".join(f"{count} x {status or 'broken'}" for status, count in statuses.most_common())
    thresholds.print_note(f"{minute:3} min: {found}; {len(disturber.done)} disturbances; not final: {_not_final(made)}")


def _not_final(made: Infrastructure) -> tuple[int, ...]:
    with made.database.connect(_DATABASE) as connection:
        row = connection.execute(_NOT_FINAL).fetchone()
    assert row is not None
    return tuple(row)


def _await_quiet(made: Infrastructure) -> tuple[int, ...]:
    """Wait until nothing is pending or the time is up; return how much is."""
    deadline = time.monotonic() + _QUIET_SECONDS
    while any(left := _not_final(made)) and time.monotonic() < deadline:
        time.sleep(1)
    return left


def _compare(made: Infrastructure, settings: Mapping[str, str], faucet: Path) -> dict[str, list[str]]:
    urls = {name: settings[f"{name.value.upper()}_RPC_URL"] for name in ChainName}
    with made.database.connect(_DATABASE) as connection:
        return {
            "violations of audits": sweeps.audit(),
            "chains and records that disagree": _disagreements(connection, urls, faucet),
            "payments made twice": [row[0] for row in connection.execute(_PAID_TWICE)],
        }


def _disagreements(connection: psycopg.Connection[Any], urls: Mapping[ChainName, str], faucet: Path) -> list[str]:
    try:
        return list(chain_records.compare(connection, app_state().ports.chains, urls, faucet))
    except chain_records.MissingBlock as error:
        return [str(error)]


def _failing_commands(run: LauncherRun, folder: Path, settings: Mapping[str, str]) -> list[str]:
    """Run the operator's checks; return the output of those that fail."""
    environment = {**os.environ, **settings, "VAR_DIR": str(folder / "var"), "PORT": str(run.port)}
    failed = []
    for command in (["audit", "verify"], ["doctor"]):
        done = subprocess.run(  # noqa: S603 - the operator's commands
            [sys.executable, "-m", "launcher", "flask", "--app", "wsgi", *command],
            cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode:
            failed.append(f"{' '.join(command)}: {done.stdout}{done.stderr[-500:]}")
    return failed


def unexplained(log: Sequence[str], disturbances: Sequence[Disturbance]) -> list[str]:
    """Return the error lines of the service that neither a kill nor a slow node explains."""
    explained = timedelta(seconds=_EXPLAINED_SECONDS)
    at, found = datetime.now(UTC), []
    for line in log:
        name, _, text = line.partition(" | ")
        if name.strip() not in _SERVICE:
            continue
        event = _parsed(text)
        if "timestamp" in event:
            at = datetime.fromisoformat(event["timestamp"])
        is_error = event.get("level") in _ERROR_LEVELS if event else _PLAIN_ERROR.search(text)
        if is_error and not any(each.at <= at + _SKEW and at <= each.until + explained for each in disturbances):
            found.append(f"{name.strip()} {text[:600]}")
    return found


def _parsed(text: str) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        event = json.loads(text)
        return event if isinstance(event, dict) else {}
    return {}


def _report(
    traffic: Traffic,
    disturber: _Disturber,
    samples: _MemorySamples,
    problems: Mapping[str, list[str]],
    *,
    minutes: float,
    seed: int,
) -> list[Threshold]:
    """Print the table and write the report; return the promises."""
    table: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for (action, status), count in sorted(traffic.outcomes.items()):
        table[action][status] += count
    for action, statuses in table.items():
        found = ", ".join(f"{count} x {status or 'broken'}" for status, count in statuses.most_common())
        thresholds.print_note(f"{action:24} {found}")
    disturbances = Counter(each.what for each in disturber.done)
    thresholds.print_note(", ".join(f"{count} x {what}" for what, count in sorted(disturbances.items())))
    growth = samples.growth()
    for name, (first, second) in growth.items():
        thresholds.print_note(f"memory of {name:16} {first:7.1f} MB, then {second:7.1f} MB")
    for kind, found_problems in problems.items():
        for problem in found_problems[:_MOST_PRINTED]:
            thresholds.print_note(f"{kind}: {problem}")
    report = {
        "minutes": minutes, "seed": seed, "answers": {action: dict(found) for action, found in table.items()},
        "disturbances": [[each.at.isoformat(), each.what] for each in disturber.done],
        "memory_mb": growth, "problems": problems,
    }  # fmt: skip
    (_FOLDER / "report.json").write_text(json.dumps(report, indent=1))
    thresholds.print_note(f"log and report: {_FOLDER}")
    return [
        thresholds.at_most("soak: answers 500, failed movements aside", traffic.internal_errors, 0, ""),
        *(thresholds.at_most(f"soak: {kind}", len(found), 0, "") for kind, found in problems.items()),
        *(
            thresholds.at_most(f"soak: memory growth of {name}", (second / first - 1) * 100, _MAX_GROWTH_PERCENT, "%")
            for name, (first, second) in growth.items()
            if name in _SERVICE
        ),
    ]
