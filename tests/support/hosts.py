"""A host that runs the processes of the Procfile."""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from launcher import forks
from tests.support.applications import key_of
from tests.support.program_forks import ForkedProgram
from tests.support.servers import _tie_to_the_tests, free_port
from tests.support.waiting import wait_until

Process = subprocess.Popen[bytes] | ForkedProgram
ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 90.0


def _procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text().splitlines()
    return {name: command.strip() for name, _, command in (line.partition(":") for line in lines if line)}


def command_of(kind: str, *, application: str = "wsgi:app") -> list[str]:
    """Return the command of a Procfile process, with the programs of this environment and perhaps an application."""
    program, *arguments = shlex.split(_procfile()[kind].replace("wsgi:app", application))
    return [str(Path(sys.executable).parent / program), *arguments]


def start_program(
    command: Sequence[str], environment: Mapping[str, str], log: Path, *, is_executed: bool = False
) -> Process:
    """Start a program of this environment that writes to a log, in a fork if it need not be executed."""
    log.touch()
    # An interpreter reads the path of modules when it starts.
    if forks.CAN_FORK and not is_executed and "PYTHONPATH" not in environment:
        return ForkedProgram(command, environment, ROOT, log)
    with log.open("ab") as output:
        return subprocess.Popen(
            [*_tie_to_the_tests(), *command], cwd=ROOT, env=dict(environment), stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


@dataclass
class Host:
    """A host with the configuration of one application, which starts processes of the Procfile."""

    environment: dict[str, str]
    folder: Path
    stack: ExitStack
    application: str = "wsgi:app"
    is_executed: bool = False
    """Whether its programs are executed; otherwise they run in forks of a process that has imported the service."""

    def __post_init__(self) -> None:
        # The file of the work tree has the heads of other tests' databases.
        self.environment["AUDIT_WITNESS_FILE"] = str(self.folder / "audit-heads.log")

    def release(self, *more: str) -> None:
        log = self.folder / "release.txt"
        assert self._run([*command_of("release"), *more], self.environment, log).wait(START_SECONDS) == 0, (
            log.read_text()
        )

    def start(self, kind: str, **more: str) -> Process:
        log = self.folder / f"{kind}-{more.get('PORT') or free_port()}.log"
        return self._run(command_of(kind, application=self.application), {**self.environment, **more}, log)

    def _run(self, command: list[str], environment: dict[str, str], log: Path) -> Process:
        process = start_program(command, environment, log, is_executed=self.is_executed)
        self.stack.callback(_end, process)
        return process

    def web(self) -> Web:
        (web,) = self.webs(1)
        return web

    def webs(self, number: int) -> list[Web]:
        """Start this many concurrently, and wait until all of them answer."""
        ports = [free_port() for _ in range(number)]
        started = [Web(port, self.start("web", PORT=str(port)), self.folder / f"web-{port}.log") for port in ports]
        for web in started:
            wait_until(web.is_up, START_SECONDS, what="an answer of the service")
        return started

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace") for path in self.folder.glob("*.log"))


@dataclass
class Web:
    """A web process and its port."""

    port: int
    process: Process
    log: Path

    def is_up(self) -> bool:
        assert self.process.poll() is None, f"it did not start:\n{self.log.read_text()[-3000:]}"
        try:
            return self.ask("GET", "/v1/health")[0] in (200, 503)
        except OSError:
            return False

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        connection.connect()
        return connection

    def ask(self, method: str, path: str, body: object = None, key: str = "", **headers: str) -> tuple[int, Any]:
        with closing(self.connect()) as connection:
            return asked(connection, method, path, body, key, **headers)

    @contextmanager
    def stopped_workers(self) -> Iterator[None]:
        """Suspend the worker processes until the block ends."""
        listing = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], check=True, capture_output=True, text=True)
        pairs = (map(int, line.split()) for line in listing.stdout.splitlines())
        workers = [pid for pid, parent in pairs if parent == self.process.pid]
        assert workers
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        yield
        for pid in workers:
            os.kill(pid, signal.SIGCONT)

    def listens(self) -> bool:
        try:
            self.connect().close()
        except ConnectionRefusedError:
            return False
        return True

    def terminate(self) -> int:
        """Terminate it as hosts do (SIGTERM, then SIGKILL after thirty seconds); return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(30)


class Router:
    """Routes each new connection to one of the web processes, as a host's router does."""

    def __init__(self, *webs: Web) -> None:
        self._webs = list(webs)
        self._lock = threading.Lock()
        self._turns = count()

    def connect(self) -> http.client.HTTPConnection:
        with self._lock:
            return self._webs[next(self._turns) % len(self._webs)].connect()

    def ask(self, method: str, path: str, body: object = None, key: str = "", **headers: str) -> tuple[int, Any]:
        with closing(self.connect()) as connection:
            return asked(connection, method, path, body, key, **headers)

    def leave(self, old: Web, new: Web | None = None) -> Web:
        """Route to another process instead of this one; return the replaced one."""
        with self._lock:
            place = self._webs.index(old)
            self._webs[place : place + 1] = [] if new is None else [new]
        return old


@dataclass
class KeptConnection:
    """A client that keeps its connection for as long as the service permits."""

    router: Router
    _connection: http.client.HTTPConnection | None = None

    def ask(self, path: str, key: str) -> tuple[int, Any]:
        """Send a request; retry on a new connection if the kept one closes without a response (RFC 9112, 9.3.1)."""
        answer: http.client.HTTPResponse | None = None
        if self._connection is not None and self._connection.sock is not None:
            with suppress(http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                answer = self._asked(self._connection, path, key)
        if answer is None:
            self.close()
            self._connection = self.router.connect()
            answer = self._asked(self._connection, path, key)
        return answer.status, json.loads(answer.read())

    @staticmethod
    def _asked(connection: http.client.HTTPConnection, path: str, key: str) -> http.client.HTTPResponse:
        connection.request("GET", path, headers={"X-API-Key": key})
        return connection.getresponse()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def asked(
    connection: http.client.HTTPConnection, method: str, path: str, body: object = None, key: str = "", **headers: str
) -> tuple[int, Any]:
    """Send a request on a connection."""
    sent = {"Content-Type": "application/json", "X-API-Key": key, **headers}
    connection.request(method, path, None if body is None else json.dumps(body), sent)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def _end(process: Process) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment_of(database_url: str, redis_url: str, **more: str) -> dict[str, str]:
    """Return the settings of a host that has one web process with few threads."""
    return {
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "NETWORK": "sandbox",
        "DATABASE_URL": as_hosts_write_it(database_url),
        "REDIS_URL": redis_url,
        "SECRET_KEY": "s" * 32,
        "CODE_PEPPERS": key_of("p1"),
        "ENCRYPTION_KEYS": key_of("k1"),
        "PRICE_OVERRIDES": "ETH:3000,SOL:150",
        "POLL_INTERVAL_SECONDS": "0.5",
        "WEB_CONCURRENCY": "1",
        "WEB_THREADS": "50",
        "AUDIT_WITNESS_FILE": "off",
        **more,
    }


def as_hosts_write_it(url: str) -> str:
    """Return a database's URL in the form that most hosts use."""
    return url.replace("postgresql+psycopg://", "postgres://")
