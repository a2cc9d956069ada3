"""A running cluster: seven hosts of `deploy/cluster/start.py`, and outside of them chains, an upstream and a router."""

import contextlib
import http.client
import json
import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import psycopg
import redis

from benchmarks import stack
from benchmarks.cluster import clocks
from benchmarks.cluster.disks import Disk
from benchmarks.cluster.network import WORLD, Network
from benchmarks.stack import ROOT
from benchmarks.upstream import running_upstream
from launcher.redis_server import find_program
from launcher.settings import CHAIN_PORTS, SERVICE_PORTS
from tests.support.servers import postgres_binaries

DATA, WEB, WORKERS = ("data1", "data2", "data3"), ("web1", "web2"), ("worker1", "worker2")
PORTS = {**CHAIN_PORTS, **SERVICE_PORTS}
"""The ports of the sandbox, by setting."""
ROUTER_PORT, LEADER_PORT = 8000, 5000
_ENGINES = ("etcd", "haproxy", "pgbouncer", "gcc")
_HINT = "apt-get install --no-install-recommends etcd-server haproxy pgbouncer gcc libc6-dev"
_START_SECONDS = 60.0
_UNPRIVILEGED = "nobody"
# What clients would reach by a virtual address or a router of their provider, and what hosts reach outside.
_ROUTER = """
defaults
    mode tcp
    timeout connect 400ms
    timeout check 3s
    timeout client 1h
    timeout server 1h
    retries 3
    option redispatch 1
    default-server inter 400ms fastinter 200ms fall 2 rise 1

listen clients
    bind 127.0.0.1:{router}
    default-server on-marked-down shutdown-sessions
    server web1 {web1}:8000 check
    server web2 {web2}:8000 check

listen leader
    bind 127.0.0.1:{leader}
    option httpchk
    http-check send meth OPTIONS uri /primary
    default-server check port 8008 on-marked-down shutdown-sessions
    server data1 {data1}:5432
    server data2 {data2}:5432
    server data3 {data3}:5432
"""
_FORWARD = """
listen outside-{port}
    bind {world}:{port}
    server local 127.0.0.1:{port}
"""


@dataclass
class Cluster:
    """The hosts with their processes."""

    network: Network
    folder: Path
    environment: dict[str, str]
    replica: str = "quorum_standby"
    """The role of replicas: with asynchronous replication another."""
    disks: dict[str, Disk] = field(default_factory=dict)
    """The disks of data hosts."""
    _supervisors: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def leader_url(self) -> str:
        """The database, from outside, as its owner."""
        return f"postgresql://purser:{self.environment['DATABASE_PASSWORD']}@127.0.0.1:{LEADER_PORT}/purser"

    def start(self, *hosts: str) -> None:
        """Start the parts of hosts."""
        for host in hosts:
            clocks.step(self.folder, host, 0)
            command = self.network.command(host, sys.executable, str(ROOT / "deploy/cluster/start.py"), host)
            environment = {**self.environment, **clocks.own_clock(self.folder, host)}
            with (self.folder / "state" / f"{host}.log").open("ab") as log:
                self._supervisors[host] = subprocess.Popen(  # noqa: S603
                    command, cwd=ROOT, env=environment,
                    stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                )  # fmt: skip

    def kill(self, host: str) -> None:
        """Kill every process of a host, as if its power was cut."""
        # The supervisor first, which would start the others again.
        self._supervisors[host].kill()
        while pids := [pid for pid in self.network.processes(host) if _is_alive(pid)]:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        self._supervisors[host].wait()

    def kill_all(self) -> None:
        """Kill every process of every host."""
        for host in self._supervisors:
            self.kill(host)

    def signal_all(self, host: str, number: signal.Signals) -> None:
        """Send a signal to every process of a host."""
        for pid in self.network.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill_part(self, host: str, part: str) -> None:
        """Kill one part with its children; the supervisor of its host starts it again."""
        root = int((self.folder / "state" / host / f"{part}.pid").read_text())
        _kill_tree(root)

    def kill_database(self, host: str) -> None:
        """Kill PostgreSQL of a host, and not Patroni."""
        lines = (self.folder / "state" / host / "postgres" / "postmaster.pid").read_text().splitlines()
        os.kill(int(lines[0]), signal.SIGKILL)

    @contextlib.contextmanager
    def clock_off(self, host: str, seconds: int) -> Iterator[None]:
        """Step the clock of a host's Patroni, PostgreSQL and service until the context ends, and back."""
        try:
            clocks.step(self.folder, host, seconds)
            yield
        finally:
            clocks.step(self.folder, host, 0)

    def leader(self) -> str:
        """Return the host whose Patroni has the lease, or ""."""
        return next((host for host in DATA if self._patroni(host, "/primary") == HTTPStatus.OK), "")

    def redis_master(self) -> str:
        """Return the host of the Redis that is a master."""
        for host in DATA[:2]:
            with contextlib.suppress(OSError):
                client = redis.Redis(
                    self.network.addresses[host], password=self.environment["REDIS_PASSWORD"], socket_timeout=2
                )
                with contextlib.suppress(redis.RedisError):
                    if client.info("replication")["role"] == "master":
                        return host
        return ""

    def is_whole(self) -> bool:
        """Return whether a leader has two streaming replicas that count, and both web hosts are well."""
        with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
            members = next(self._cluster(host)["members"] for host in DATA if self._patroni(host, "/liveness"))
            states = sorted((member["role"], member["state"]) for member in members)
            expected = [("leader", "running"), *[(self.replica, "streaming")] * 2]
            # What a member reported last may be from before the fault, and then of an older timeline.
            timelines = {member.get("timeline") for member in members}
            return (
                states == expected and len(timelines) == 1 and all(self.health(host) == HTTPStatus.OK for host in WEB)
            )
        return False

    def await_whole(self, seconds: float = _START_SECONDS) -> float:
        """Wait until nothing is missing; return the seconds. Raises: RuntimeError with the state."""
        began = time.monotonic()
        while not self.is_whole():
            if time.monotonic() - began > seconds:
                raise RuntimeError(f"the cluster is not whole again: {self.describe()}")
            time.sleep(0.25)
        return time.monotonic() - began

    def describe(self) -> str:
        """Return the state of the members and of the web hosts."""
        found = []
        for host in DATA:
            with contextlib.suppress(OSError, ValueError, http.client.HTTPException):
                found += [f"{each['name']} {each['role']} {each['state']}" for each in self._cluster(host)["members"]]
                break
        return ", ".join([*found, *(f"{host} {self.health(host)}" for host in WEB)])

    def health(self, host: str) -> int:
        """Return the status of a web host's health page, or 0."""
        return _status(self.network.addresses[host], 8080, "/v1/health")

    def connect(self) -> psycopg.Connection[Any]:
        """Connect to the leader."""
        return psycopg.connect(self.leader_url, autocommit=True)

    def run_on(self, host: str, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the service on a host, with the settings that its parts have there."""
        code = (
            "import os, sys; sys.path.insert(0, 'deploy/cluster'); import start; "
            f"host = start.Host({host!r}, os.environ); "
            "os.execvpe(sys.argv[1], sys.argv[1:], host.environment_of('web'))"
        )
        line = self.network.command(host, sys.executable, "-c", code, *command)
        return subprocess.run(line, cwd=ROOT, env=self.environment, capture_output=True, text=True, check=False)  # noqa: S603

    def _patroni(self, host: str, path: str) -> int:
        status = _status(self.network.addresses[host], 8008, path)
        return status if status == HTTPStatus.OK else 0

    def _cluster(self, host: str) -> Any:
        return json.loads(_get(self.network.addresses[host], 8008, "/cluster")[1])


@contextlib.contextmanager
def running_cluster(folder: Path) -> Iterator[tuple[Cluster, dict[str, str]]]:
    """Run everything until the context ends; yield the cluster and the settings of its service."""
    with contextlib.ExitStack() as running:
        network = Network([*DATA, *WEB, *WORKERS])
        state = folder / "state"
        state.mkdir(mode=0o755)
        upstream = running.enter_context(running_upstream(stream_seconds=2))
        forwarded = [*PORTS.values(), upstream.port]
        config = _ROUTER.format(router=ROUTER_PORT, leader=LEADER_PORT, **network.addresses)
        config += "".join(_FORWARD.format(world=WORLD, port=port) for port in forwarded)
        (folder / "router.cfg").write_text(config)
        running.enter_context(_program(folder / "router.log", "haproxy", "-db", "-f", str(folder / "router.cfg")))
        running.enter_context(
            _program(folder / "sandbox.log", sys.executable, "-m", "sandbox", "--state", str(folder / "sandbox"))
        )
        _wait(lambda: "sandbox ready" in (folder / "sandbox.log").read_text(), folder / "sandbox.log")
        settings = {
            "NETWORK": "sandbox", "SANDBOX_PUBLIC": "1", "SECRET_KEY": secrets.token_urlsafe(32),
            "CODE_PEPPERS": stack.make_key(), "ENCRYPTION_KEYS": stack.make_key(),
            "BOOTSTRAP_MASTER_KEY": f"mk_{secrets.token_urlsafe(32)}",
            "WEB_CONCURRENCY": "1", "WEB_THREADS": "60", "PRICE_OVERRIDES": "ETH:3000,SOL:150",
            **{name: f"http://{WORLD}:{port}" for name, port in PORTS.items()},
            "OPENAI_API_KEY": "sk-cluster", "OPENAI_BASE_URL": f"http://{WORLD}:{upstream.port}/v1",
            "RELAY_BASE_URL": f"http://{WORLD}:{PORTS['CCTP_ATTESTATION_URL']}",
            "LIFI_BASE_URL": f"http://{WORLD}:{PORTS['CCTP_ATTESTATION_URL']}/v1",
            "INITIAL_CREDITS_USD": "100000", "UPSTREAM_READ_TIMEOUT_SECONDS": "20", "LOG_LEVEL": "INFO",
            "UPSTREAM_PORT": str(upstream.port),
        }  # fmt: skip
        disks = {host: Disk(folder / f"{host}.img", state / host) for host in DATA}
        cluster = Cluster(network, folder, _environment(folder, network) | settings, disks=disks)
        running.callback(cluster.kill_all)
        cluster.start(*DATA)
        _wait(lambda: bool(cluster.leader()), state / "data1-patroni.log")
        _wait(lambda: _accepts(cluster.leader_url), folder / "router.log")
        migrating = {**cluster.environment, "DATABASE_URL": cluster.leader_url}
        released = subprocess.run(  # noqa: S603
            stack.procfile_command("release"), cwd=ROOT, env=migrating, capture_output=True, text=True, check=False
        )
        if released.returncode:
            raise RuntimeError(released.stdout + released.stderr)
        cluster.start(*WEB, *WORKERS)
        cluster.await_whole()
        yield cluster, settings


def prepare(folder: Path) -> None:
    """Install Patroni in a folder, before there is no network. Raises: SystemExit if an engine is missing."""
    if missing := [name for name in _ENGINES if shutil.which(name) is None]:
        raise SystemExit(f"{', '.join(missing)} missing: {_HINT}")
    folder.chmod(0o755)
    uv = shutil.which("uv", path=str(Path(sys.executable).parent)) or "uv"
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
    python, locked = folder / "patroni", ROOT / "deploy/cluster/patroni.txt"
    for command in (
        [uv, "venv", "--quiet", "--python", _python(), str(python)],
        [uv, "pip", "install", "--quiet", "--python", f"{python}/bin/python", "--require-hashes", "-r", str(locked)],
    ):
        subprocess.run(command, env=environment, check=True)  # noqa: S603
    [bound] = python.glob("lib/python*/site-packages/patroni/config.py")
    subprocess.run(["sed", "--in-place", "--file", str(ROOT / "deploy/cluster/lease.sed"), str(bound)], check=True)  # noqa: S603, S607
    (folder / "bin").mkdir()
    clocks.prepare(folder, [*DATA, *WEB, *WORKERS])
    # Engines get a bare environment, with their host's folder as HOME. PostgreSQL inherits from Patroni.
    clock = clocks.own_clock(folder, "${HOME##*/}").items()
    wrapper = ["#!/bin/sh", *(f"export {name}={value}" for name, value in clock), f'exec {python}/bin/patroni "$@"', ""]
    (folder / "bin" / "patroni").write_text("\n".join(wrapper))
    (folder / "bin" / "patroni").chmod(0o755)
    program = find_program()
    assert program is not None
    shutil.copy(program, folder / "bin" / "valkey-server")


def _python() -> str:
    """Return an interpreter that the user of the engines may run; an own one may be in a home folder."""
    user = pwd.getpwnam(_UNPRIVILEGED)
    for each in (str(Path(sys.executable).resolve()), "/usr/bin/python3"):
        with contextlib.suppress(PermissionError):
            subprocess.run(  # noqa: S603
                [each, "-c", ""], check=True, user=user.pw_uid, group=user.pw_gid, extra_groups=[]
            )
            return each
    raise SystemExit(f"{_UNPRIVILEGED} can run no Python")


def _environment(folder: Path, network: Network) -> dict[str, str]:
    postgres = folder / "postgresql"
    postgres.mkdir(mode=0o755)
    binaries, _ = postgres_binaries(postgres)
    programs = [folder / "bin", Path(sys.executable).parent]
    names = ("POSTGRES", "REPLICATION", "DATABASE", "REDIS", "PATRONI")
    return {
        "PATH": ":".join([*map(str, programs), os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"]),
        "HOME": os.environ.get("HOME", "/"),
        "CLUSTER_STATE": str(folder / "state"),
        "CLUSTER_USER": pwd.getpwnam(_UNPRIVILEGED).pw_name,
        "CLUSTER_ADDRESSES": " ".join(f"{host}={address}" for host, address in network.addresses.items()),
        "POSTGRES_BIN": str(binaries),
        "SHARED_BUFFERS": "64MB",
        "POOL_SIZE": "15",
        **{f"{name}_PASSWORD": secrets.token_hex(16) for name in names},
    }


@contextlib.contextmanager
def _program(log: Path, *command: str) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        yield
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        process.kill()


def _wait(condition: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"not ready:\n{log.read_text(errors='replace')[-3000:] if log.exists() else log}")
        time.sleep(0.1)


def _accepts(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError), psycopg.connect(url, connect_timeout=2):
        return True
    return False


def _get(address: str, port: int, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(address, port, timeout=2)
    try:
        # The sandbox answers to local names only.
        connection.request("GET", path, headers={"Host": "127.0.0.1"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def _status(address: str, port: int, path: str) -> int:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return _get(address, port, path)[0]
    return 0


def _kill_tree(root: int) -> None:
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        with contextlib.suppress(OSError, AttributeError):
            if folder.name.isdigit():
                parent = re.search(r"^PPid:\s+(\d+)", (folder / "status").read_text(), re.MULTILINE)
                children.setdefault(int(parent[1]), []).append(int(folder.name))  # type: ignore[index]
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    for pid in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    return False
