"""`python -m benchmarks.mutation`: changes the code that handles money and runs the tests that should notice.

The tests are imported once. For each mutant the process forks, replaces the code of the mutated function in memory and
runs the tests that reached its line when they were recorded, the fastest first, until one fails. A mutant that no
test notices survives; one that exceeds its time is killed. Results are kept in `var/mutation` and not repeated.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import importlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutants import Mutant, mutants_of, record_lines
from tests.support.servers import postgres_server, redis_server

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "var" / "mutation"
PACKAGES = (
    "app/spending", "app/credits", "app/usage", "app/wallets/transactions", "app/payments", "app/gateway/pricing",
)  # fmt: skip
TESTS = ("tests/unit", "tests/api", "tests/machines", "tests/concurrency", "tests/workers", "tests/adapters")
KILLED, TIMED_OUT, SURVIVED, NOT_COVERED = "killed", "timed out", "survived", "not covered"
UNCHANGED = -1
OUTCOMES = (KILLED, TIMED_OUT, SURVIVED, NOT_COVERED)


class Runner:
    """The pytest plugin: runs the collected tests in forked processes, once for the record, then for each mutant."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.deadline = time.monotonic() + options.minutes * 60
        self.scratch = Path(tempfile.mkdtemp(prefix="purser-mutation-"))
        self.failed = False
        self.seconds: dict[str, float] = defaultdict(float)
        self.lines: dict[str, list[tuple[str, int]]] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        """Let a failed test of Hypothesis end without looking for a smaller example."""
        # pytest warns of plugins that are imported before it.
        hypothesis = importlib.import_module("hypothesis")
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        default = hypothesis.settings.get_profile("first tier")
        hypothesis.settings.register_profile("mutation", default, phases=phases, database=None)
        hypothesis.settings.load_profile("mutation")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the time and the failure of a test."""
        self.failed |= report.failed
        self.seconds[report.nodeid] += report.duration

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Do all the work in place of pytest's loop."""
        files = [path for package in PACKAGES for path in _files(package)]
        modules = {path: vars(importlib.import_module(_module_name(path))) for path in files}
        try:
            record = self._record(session, modules)
            self._try_mutants(session, record)
        finally:
            shutil.rmtree(self.scratch, ignore_errors=True)
        return True

    def _record(self, session: pytest.Session, modules: dict[str, dict[str, Any]]) -> dict[str, Any]:
        """Return for each test its seconds and the lines that it reaches; only what has changed runs again."""
        kept = FOLDER / "record.json"
        record: dict[str, Any] = json.loads(kept.read_text()) if kept.exists() else {}
        source = _digest(*modules)
        if record.get("source") != source:
            record = {"source": source, "tests": {}}
        digests = {item.nodeid: _digest(item.nodeid.split("::")[0]) for item in session.items}
        known = record["tests"]
        missing = [item for item in session.items if known.get(item.nodeid, [0])[0] != digests[item.nodeid]]
        print(f"Recording {len(missing)} of {len(session.items)} tests")
        paths = list(dict.fromkeys(item.path for item in missing))
        parts = [set(paths[job :: self.options.jobs]) for job in range(self.options.jobs)]
        shares = [[item for item in missing if item.path in part] for part in parts]
        running = [self._fork(partial(self._run_recorded, share, modules)) for share in shares]
        for process, out in running:
            os.waitpid(process, 0)
            for line in out.read_text().splitlines():
                test, seconds, lines = json.loads(line)
                known[test] = [digests[test], seconds, lines]
                if lines is None:
                    print(f"fails without a change, and is left out: {test}")
        FOLDER.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(record))
        if lost := digests.keys() - known.keys():
            raise pytest.UsageError(f"The recording ended early: {len(lost)} tests are missing. Start it again.")
        return record

    def _run_recorded(self, items: list[pytest.Item], modules: dict[str, dict[str, Any]], out: Path) -> None:
        covered: set[tuple[str, int]] = set()
        for path, module in modules.items():
            record_lines(ROOT, path, covered, module)
        with out.open("w") as file:
            for item in self._run(items):
                # A test that fails alone proves nothing; it stays out of the record.
                lines = None if self.failed else sorted(covered)
                self.failed = False
                covered.clear()
                print(json.dumps([item.nodeid, self.seconds[item.nodeid], lines]), file=file, flush=True)

    def _try_mutants(self, session: pytest.Session, record: dict[str, Any]) -> None:
        items = {item.nodeid: item for item in session.items}
        reached: dict[tuple[str, int], list[str]] = defaultdict(list)
        for test, (_, seconds, lines) in sorted(record["tests"].items(), key=lambda each: each[1][1]):
            if test in items and seconds < self.options.seconds:
                for path, line in lines or ():
                    reached[path, line].append(test)
        results, running = Results(), list[Attempt]()
        waiting = self._waiting(results)
        while running or waiting:
            while waiting and len(running) < self.options.jobs:
                mutant = waiting.pop(0)
                tests, seconds = self._affordable(reached[mutant.path, mutant.line], record)
                if not tests:
                    results.add(mutant, NOT_COVERED)
                    continue
                work = partial(self._run_mutated, mutant, [items[test] for test in tests])
                running.append(Attempt(mutant, *self._fork(work), time.monotonic() + 20 + 4 * seconds))
            time.sleep(0.02)
            for attempt in [each for each in running if each.has_ended()]:
                running.remove(attempt)
                results.add(attempt.mutant, *attempt.outcome())
            if time.monotonic() > self.deadline:
                waiting.clear()
        results.print_table(self._chosen(), every={p: len(_mutants(p)) for p in self.options.packages})

    def _waiting(self, results: Results) -> list[Mutant]:
        """Return the mutants to try, after one run without a change for each package."""
        wanted = {"", NOT_COVERED} | ({SURVIVED} if self.options.again else set())
        waiting = [mutant for mutant in self._chosen() if results.outcome(mutant) in wanted]
        first = {path: mutant for path in self.options.packages for mutant in waiting if mutant.path.startswith(path)}
        return [*(replace(each, number=UNCHANGED, change="unchanged") for each in first.values()), *waiting]

    def _affordable(self, tests: list[str], record: dict[str, Any]) -> tuple[list[str], float]:
        """Return the tests, the fastest first, that end within the seconds for a mutant; and their seconds."""
        total, chosen = 0.0, []
        for test in tests:
            total += record["tests"][test][1]
            if total > self.options.seconds:
                break
            chosen.append(test)
        return chosen, total

    def _run_mutated(self, mutant: Mutant, items: list[pytest.Item], out: Path) -> None:
        if mutant.number != UNCHANGED and not mutant.install(ROOT):
            out.write_text(f"{SURVIVED}: its function was not found")
            return
        for item in self._run(items):
            if self.failed:
                out.write_text(item.nodeid)
                return
        out.write_text(SURVIVED)

    def _run(self, items: list[pytest.Item]) -> Iterator[pytest.Item]:
        for item, following in zip(items, [*items[1:], None], strict=False):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            yield item

    def _fork(self, work: Callable[[Path], None]) -> tuple[int, Path]:
        """Run in a process group of its own, without output; return its id and its file of results."""
        out = self.scratch / f"{time.monotonic_ns()}.out"
        if process := os.fork():
            return process, out
        os.setsid()
        silent = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(silent, number)
        # Names of databases contain it.
        os.environ["PYTEST_XDIST_WORKER"] = f"m{os.getpid()}"
        tempfile.tempdir = str(out.with_suffix(".d"))
        Path(tempfile.tempdir).mkdir()
        try:
            work(out)
        except BaseException as error:
            out.write_text(f"{SURVIVED}: {error!r}")
        finally:
            os._exit(0)

    def _chosen(self) -> list[Mutant]:
        """Return the sample; a larger one of the same seed contains the smaller."""
        chosen: list[Mutant] = []
        for package in self.options.packages:
            mutants = _mutants(package)
            random.Random(self.options.seed).shuffle(mutants)
            chosen += mutants[: self.options.sample or None]
        return chosen


@dataclass(frozen=True, slots=True)
class Attempt:
    """A mutant and the process that tries it."""

    mutant: Mutant
    process: int
    out: Path
    deadline: float

    def has_ended(self) -> bool:
        """Return whether the process has ended; end it after its deadline."""
        ended, _ = os.waitpid(self.process, os.WNOHANG)
        if not ended and time.monotonic() < self.deadline:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)
        if not ended:
            os.waitpid(self.process, 0)
            self.out.write_text(TIMED_OUT)
        shutil.rmtree(self.out.with_suffix(".d"), ignore_errors=True)
        return True

    def outcome(self) -> tuple[str, str]:
        """Return the outcome and the test that failed."""
        # The process of a mutant that ends before its tests do was ended by it.
        by = self.out.read_text() if self.out.exists() else ""
        return next((each for each in (SURVIVED, TIMED_OUT) if by.startswith(each)), KILLED), by


class Results:
    """The outcomes, one line of a file each; those of a file that has changed since do not count."""

    def __init__(self) -> None:
        self.file = FOLDER / "results.jsonl"
        self.found: dict[str, tuple[str, str]] = {}
        if self.file.exists():
            for line in self.file.read_text().splitlines():
                key, outcome, by, _ = json.loads(line)
                self.found[key] = (outcome, by)

    def outcome(self, mutant: Mutant) -> str:
        """Return the outcome of a mutant, or an empty string."""
        return self.found.get(_key(mutant), ("", ""))[0]

    def add(self, mutant: Mutant, outcome: str, by: str = "") -> None:
        """Keep an outcome. Killed mutants prove something only if the tests pass without a mutant."""
        if mutant.number == UNCHANGED:
            if outcome not in {SURVIVED, NOT_COVERED}:
                raise pytest.UsageError(f"{mutant.title}: {outcome} {by}")
            return
        self.found[_key(mutant)] = (outcome, by)
        if outcome == NOT_COVERED:
            return
        with self.file.open("a") as file:
            print(json.dumps([_key(mutant), outcome, by, mutant.title]), file=file)

    def print_table(self, chosen: list[Mutant], *, every: dict[str, int]) -> None:
        """Print the mutants that were not killed, and the outcomes by package."""
        for mutant in chosen:
            if self.outcome(mutant) in {SURVIVED, NOT_COVERED}:
                statement = (ROOT / mutant.path).read_text().splitlines()[mutant.line - 1].strip()
                print(f"{self.outcome(mutant)}: {mutant.title} in `{statement}`")
        print(f"\n| Package | Mutants | Tried | {' | '.join(map(str.capitalize, OUTCOMES))} | Share killed |")
        print("|---|" + "---:|" * 7)
        rows = {package: [each for each in chosen if each.path.startswith(package)] for package in every}
        for name, mutants in [*rows.items(), ("all", chosen)]:
            counts = Counter(self.outcome(each) for each in mutants)
            tried = sum(counts[outcome] for outcome in OUTCOMES)
            killed = counts[KILLED] + counts[TIMED_OUT]
            cells = [every.get(name, sum(every.values())), tried, *(counts[outcome] for outcome in OUTCOMES)]
            print(f"| {name} | {' | '.join(map(str, cells))} | {killed / max(tried, 1):.0%} |")


def _files(package: str) -> list[str]:
    found = [package] if package.endswith(".py") else sorted((ROOT / package).rglob("*.py"))
    return [(ROOT / path).relative_to(ROOT).as_posix() for path in found]


def _mutants(package: str) -> list[Mutant]:
    return [mutant for path in _files(package) for mutant in mutants_of(ROOT, path)]


def _module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _digest(*paths: str) -> str:
    return hashlib.sha256(b"".join((ROOT / path).read_bytes() for path in paths)).hexdigest()[:16]


def _key(mutant: Mutant) -> str:
    return f"{mutant.path}:{_digest(mutant.path, 'benchmarks/mutants.py')}:{mutant.number}"


def main() -> int:
    """Record the tests, try the mutants and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description=__doc__)
    parser.add_argument("packages", nargs="*", default=PACKAGES, help=f"default: {' '.join(PACKAGES)}")
    parser.add_argument("--sample", type=int, default=15, help="mutants for each package; 0: all")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no mutant after that")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for each mutant")
    parser.add_argument("--jobs", type=int, default=2, help="mutants tried at a time")
    parser.add_argument("--again", action="store_true", help="also those that survived")
    parser.add_argument("--tests", nargs="+", default=TESTS, help=f"default: {' '.join(TESTS)}")
    options = parser.parse_args()
    with postgres_server() as postgres, redis_server() as redis_url:
        os.environ |= {"TEST_POSTGRES_URL": postgres.url, "TEST_REDIS_URL": redis_url}
        arguments = ["-q", "-s", "-n0", "--tier=1", "-pno:randomly", "-pno:cacheprovider", *options.tests]
        return pytest.main(arguments, plugins=[Runner(options)])


if __name__ == "__main__":
    sys.exit(main())
