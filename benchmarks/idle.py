"""Start time, and processor time and memory at rest, of everything that `./run` starts."""

import contextlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import processes, thresholds
from benchmarks.stack import ROOT, Infrastructure
from benchmarks.thresholds import Threshold
from tests.support.servers import free_port

_START_SECONDS = 240.0  # a busy machine is slow
_MAX_PROCESSOR_PERCENT = 4.0
_MAX_SERVICE_PERCENT = 1.0
_MAX_MEMORY_MB = 600.0
_MAX_START_SECONDS = 5.0
_MEMORY_SAMPLES = 12
_SERVICE = ("web", "worker", "scheduler", "shopper")
# The distinguishing word of a command line, and the name of the process in the table.
_NAMES = {
    "gunicorn": "web",
    "workers.purchases": "shopper",
    "workers.schedule": "scheduler",
    "workers": "worker",
    "solana_node": "solana",
    "sandbox": "sandbox",
    "anvil": "anvil",
    "valkey-server": "redis",
    "redis-server": "redis",
    "launcher": "launcher",
}


@dataclass(frozen=True, slots=True)
class _Start:
    """One start: the seconds until the welcome, and until what it prints works; the processor seconds by then."""

    welcome_seconds: float
    funded_seconds: float
    processor_seconds: float


def measure(_infrastructure: Infrastructure, *, quick: bool) -> list[Threshold]:
    """Start `./run` twice on the same folder, and measure both at rest, with an agent and a deposit.

    The first start is that of a fresh clone: it compiles every module, which leaves more memory in use.
    """
    with tempfile.TemporaryDirectory(prefix="purser-idle-") as folder:
        with running_launcher(Path(folder)) as run:
            first = run.time_start()
            time.sleep(5 if quick else 30)
            first_shares, first_memory = run.sample(5 if quick else 30)
        with running_launcher(Path(folder)) as run:
            second = run.time_start()
            # The chains mine for half a minute after the last transaction.
            time.sleep(5 if quick else 90)
            shares, memory = run.sample(5 if quick else 60)
    thresholds.print_heading("./run: seconds from its start")
    thresholds.print_note(f"{'':20} {'welcome':>8} {'deposit confirmed':>18} {'processor':>10}")
    for name, start in (("first start", first), ("second start", second)):
        thresholds.print_note(
            f"{name:20} {start.welcome_seconds:8.1f} {start.funded_seconds:18.1f} {start.processor_seconds:10.1f}"
        )
    thresholds.print_heading("./run at rest (percent of one processor; MB of proportional memory)")
    thresholds.print_note(f"{'':20} {'first start':>22} {'second start':>22}")
    for name in sorted(shares | memory):
        thresholds.print_note(
            f"{name:20} {first_shares[name]:9.2f} % {first_memory[name]:7.0f} MB"
            f" {shares[name]:9.2f} % {memory[name]:7.0f} MB"
        )
    service = sum(shares[name] for name in _SERVICE)
    return [
        thresholds.at_most("second start until the welcome", second.welcome_seconds, _MAX_START_SECONDS, "s"),
        thresholds.at_most("./run at rest", shares.total(), _MAX_PROCESSOR_PERCENT, "% of a processor"),
        thresholds.at_most("web, workers and scheduler at rest", service, _MAX_SERVICE_PERCENT, "%"),
        thresholds.at_most("first start at rest, proportional memory", first_memory.total(), _MAX_MEMORY_MB, "MB"),
        thresholds.at_most("second start, proportional memory", memory.total(), _MAX_MEMORY_MB, "MB"),
    ]


class LauncherRun:
    """A running launcher: its process, the port of the service, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log
        self._started = time.monotonic()

    def await_welcome(self) -> None:
        """Wait until the service runs. Raises: RuntimeError with the log."""
        _wait(lambda: "Purser runs on" in self.log.read_text(), self.log)

    def time_start(self) -> _Start:
        """Follow the printed instructions as soon as they are there: register, fund, await the deposit."""
        self.await_welcome()
        welcome, processor = self._seconds(), processes.processor_seconds(self.process.pid)
        key = re.findall(r"master key +(mk_\S+)", self.log.read_text())[0]
        self._call("GET", "/v1/platform/agents", {"X-Master-Key": key})
        agent = self._call("POST", "/v1/agents/register", {}, {"name": "demo"})
        headers, wallet = {"X-API-Key": agent["apiKey"]}, f"/v1/wallets/{agent['wallet']['id']}"
        body = {"chain": "base", "currency": "USDC", "amount": "25"}
        asked = self._call("POST", f"{wallet}/fund", headers, body)
        transaction = f"{wallet}/transactions/{asked['funding_request_id']}"
        _wait(lambda: self._call("GET", transaction, headers)["status"] == "confirmed", self.log)
        return _Start(welcome, self._seconds(), processor)

    def sample(self, seconds: float) -> tuple[Counter[str], Counter[str]]:
        """Return by process: the percentage of one processor, and the mean proportional memory in MB."""
        before, started = self._ticks(), time.monotonic()
        samples: defaultdict[str, float] = defaultdict(float)
        for _ in range(_MEMORY_SAMPLES):
            time.sleep(seconds / _MEMORY_SAMPLES)
            for pid in processes.tree(self.process.pid):
                with contextlib.suppress(OSError, KeyError):
                    samples[name_of(pid)] += processes.memory(pid).proportional_mb / _MEMORY_SAMPLES
        elapsed = time.monotonic() - started
        used = Counter({name: after - before[name] for name, after in self._ticks().items()})
        return Counter({name: used[name] / elapsed * 100 for name in used}), Counter(samples)

    def _ticks(self) -> Counter[str]:
        used: Counter[str] = Counter()
        for pid in processes.tree(self.process.pid):
            used[name_of(pid)] += processes.own_seconds(pid)  # type: ignore[assignment] # not integers
        return used

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def _call(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, {"Content-Type": "application/json", **headers})
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= http.HTTPStatus.BAD_REQUEST:
                raise RuntimeError(f"{method} {path}: {answer.status} {text!r}")
            return json.loads(text)
        finally:
            connection.close()


@contextlib.contextmanager
def running_launcher(folder: Path, **settings: str) -> Iterator[LauncherRun]:
    """Run what `./run` executes, with its state in a folder, until the context ends."""
    port, log = free_port(), folder / "run.log"
    environment = {name: os.environ[name] for name in ("PATH", "HOME", "XDG_CACHE_HOME") if name in os.environ}
    environment |= {"PORT": str(port), "VAR_DIR": str(folder / "var"), "NETWORK": "sandbox"}
    environment |= {"PYTHONPYCACHEPREFIX": str(folder / "bytecode"), **settings}
    with log.open("wb") as output:
        # What `./run` executes once the packages are installed.
        process = subprocess.Popen(
            [sys.executable, "-m", "launcher"], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield LauncherRun(process, port, log)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def _wait(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"./run did not start:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def name_of(pid: int) -> str:
    """Return the name of a launcher's process. Raises: OSError when it has ended."""
    # Forks of the launcher have its command line, and a name of their own.
    if (name := processes.name(pid)) in _SERVICE:
        return name
    # Redis writes its address into its name, behind a space.
    words = {Path(word.partition(" ")[0]).name for word in processes.command_line(pid)}
    return next((name for word, name in _NAMES.items() if word in words), "other")
