"""The whole service as the Procfile runs it, on PostgreSQL and local chains, with separate ports and files."""

import base64
import contextlib
import http.client
import os
import secrets
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config import UpstreamAccess
from benchmarks import postgres, processes
from benchmarks.postgres import Server
from sandbox.evm import EvmNode
from tests.support.payments import decoded
from tests.support.servers import free_port, redis_server

ROOT = Path(__file__).resolve().parent.parent
_TEMPLATE = "newest_schema"
_START_SECONDS = 240.0  # a busy machine is slow
_STOP_SECONDS = 30.0
_NOWHERE = "http://127.0.0.1:9"
_BLOCK_SECONDS = {"ethereum": 2.0, "base": 1.0}  # as the sandbox has them


@dataclass(frozen=True, slots=True)
class Infrastructure:
    """Servers and nodes that the service needs, with the settings that name them."""

    folder: Path
    database: Server
    nodes: Mapping[str, EvmNode]
    redis_url: str

    def environment(self, database_url: str, **settings: str) -> dict[str, str]:
        """Return the environment of the service's processes on one database."""
        chosen = {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "PYTHONPATH": str(ROOT),
            "NETWORK": "sandbox",
            "DATABASE_URL": database_url,
            "REDIS_URL": self.redis_url,
            "SECRET_KEY": secrets.token_urlsafe(32),
            "CODE_PEPPERS": make_key(),
            "ENCRYPTION_KEYS": make_key(),
            **{f"{name.upper()}_RPC_URL": self.nodes[name].url if self.nodes else _NOWHERE for name in _BLOCK_SECONDS},
            # As outside of the sandbox requests are counted, but no load exceeds these limits.
            "RATE_LIMIT_PER_KEY": "600000 per minute",
            "REGISTRATION_RATE_LIMIT": "600000 per minute",
            "KEYLESS_RATE_LIMIT": "600000 per minute",
            "SOLANA_RPC_URL": _NOWHERE,  # not measured: no figure below reads Solana
        }
        return chosen | settings

    def migrated(self, name: str, **settings: str) -> dict[str, str]:
        """Create a database with the newest schema; return the environment that uses it."""
        return self.environment(self.database.create_database(name, template=_TEMPLATE), **settings)

    def migrated_sqlite(self, name: str, **settings: str) -> dict[str, str]:
        """Create an SQLite file with the newest schema; return the environment that uses it."""
        environment = self.environment(f"sqlite:///{self.folder / name}.sqlite", **settings)
        self._release(environment)
        return environment

    def migrate_template(self) -> None:
        """Create the template of all databases with the Procfile's release command."""
        self._release(self.environment(self.database.create_database(_TEMPLATE)))

    @staticmethod
    def _release(environment: Mapping[str, str]) -> None:
        subprocess.run(  # noqa: S603 - the Procfile's command
            procfile_command("release"), env=environment, cwd=ROOT, check=True, capture_output=True, timeout=120
        )


@dataclass(frozen=True, slots=True)
class Service:
    """The service's running processes: web hosts with their ports, and the ids of the others."""

    ports: tuple[int, ...]
    webs: tuple[int, ...]
    workers: tuple[int, ...]
    schedulers: tuple[int, ...]

    @property
    def port(self) -> int:
        """The first web host's port."""
        return self.ports[0]

    @property
    def web(self) -> int:
        """The first web host."""
        return self.webs[0]

    @property
    def worker(self) -> int:
        """The first worker."""
        return self.workers[0]

    @property
    def scheduler(self) -> int:
        """The first scheduler."""
        return self.schedulers[0]

    def call(self, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, bytes]:
        """Make one request and return status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            sent = {"Content-Type": "application/json", **headers} if body else headers
            connection.request(method, path, body=body or None, headers=sent)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    def payment_terms(self, path: str, chain_id: int) -> dict[str, Any]:
        """Return what a call without a key is offered to pay on a chain."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", path)
            accepts = decoded(connection.getresponse().headers["PAYMENT-REQUIRED"])["accepts"]
        return dict(next(each for each in accepts if each["network"] == f"eip155:{chain_id}"))


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Create a folder that all users can read, and delete it when the context ends."""
    with tempfile.TemporaryDirectory(prefix="purser-benchmark-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextlib.contextmanager
def start_infrastructure(*, chains: bool = True) -> Iterator[Infrastructure]:
    """Start database, Redis and, unless no chain is needed, nodes."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(scratch_folder())
        database = stack.enter_context(postgres.durable_server(folder))
        redis_url = stack.enter_context(redis_server())
        wanted = _BLOCK_SECONDS if chains else {}
        nodes = {name: stack.enter_context(EvmNode(name, block_time=pace)) for name, pace in wanted.items()}
        made = Infrastructure(folder, database, nodes, redis_url)
        made.migrate_template()
        yield made


@contextlib.contextmanager
def running_service(
    infrastructure: Infrastructure,
    environment: Mapping[str, str],
    *,
    webs: int = 1,
    workers: int = 1,
    schedulers: int = 1,
) -> Iterator[Service]:
    """Run the given numbers of web, worker and scheduler processes until the context ends."""
    ports = tuple(free_port() for _ in range(webs))
    started: list[subprocess.Popen[bytes]] = []
    log = infrastructure.folder / "service.log"
    with log.open("ab") as output:

        def start(name: str, *options: str, **settings: str) -> int:
            process = subprocess.Popen(  # noqa: S603 - the Procfile's command
                [*procfile_command(name), *options], cwd=ROOT, env={**environment, **settings},
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip
            started.append(process)
            return process.pid

        try:
            service = Service(
                ports,
                tuple(start("web", "--bind", f"127.0.0.1:{port}", PORT=str(port)) for port in ports),
                tuple(start("worker") for _ in range(workers)),
                tuple(start("scheduler") for _ in range(schedulers)),
            )
            for port in ports:
                _wait_for_response(port, "/v1/health", log)
            yield service
        finally:
            _stop(*started)


@contextlib.contextmanager
def running_program(
    command: Sequence[str], port: int, *, settings: Mapping[str, str], log: Path | None = None
) -> Iterator[int]:
    """Run a server until the context ends; yield its process id once it accepts connections.

    Raises: RuntimeError when it ends, or does not start.
    """
    with contextlib.ExitStack() as files:
        output = files.enter_context(log.open("wb")) if log else subprocess.DEVNULL
        process = subprocess.Popen(  # noqa: S603 - a program of the benchmarks
            # LiteLLM imports modules from two folders above its working directory.
            command, cwd="/", env={"PATH": os.environ.get("PATH", os.defpath), **settings},
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                text = log.read_text(errors="replace")[-3000:] if log else ""
                raise RuntimeError(f"{command[0]} did not start:\n{text}")
            time.sleep(0.1)
        yield process.pid
    finally:
        _stop(process)


def node_process(node: EvmNode) -> int:
    """Return the process id of a node. A proxy may serve its URL."""
    return processes.child_named("anvil", str(node.chain_id))


def settings_of(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for an application in this process."""
    given: dict[str, Any] = {
        name.lower(): value for name, value in environment.items() if name not in ("PATH", "PYTHONPATH")
    }
    upstreams = {name: given.pop(name) for name in UpstreamAccess.model_fields if name in given}
    return {**given, "upstreams": UpstreamAccess(**upstreams)}


def procfile_command(name: str) -> list[str]:
    """Return a Procfile command with its program's full path."""
    for line in (ROOT / "Procfile").read_text().splitlines():
        process, _, command = line.partition(":")
        if process == name:
            program, *arguments = shlex.split(command)
            return [str(Path(sys.executable).parent / program), *arguments]
    raise RuntimeError(f"the Procfile has no {name}")


def _wait_for_response(port: int, path: str, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", path)
            if connection.getresponse().status == http.HTTPStatus.OK:
                return
        except (OSError, http.client.HTTPException):
            pass
        finally:
            connection.close()
        if time.monotonic() > deadline:
            raise RuntimeError(f"the service did not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)


def _stop(*running: subprocess.Popen[bytes]) -> None:
    """Terminate all of them, and kill those that do not end."""
    for process in running:
        process.terminate()
    deadline = time.monotonic() + _STOP_SECONDS
    for process in running:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def make_key() -> str:
    """Return a new key in the form of the settings."""
    return f"k1:{base64.b64encode(secrets.token_bytes(32)).decode()}"
