"""Start the parts of one host of the cluster, each again when it ends: `python deploy/cluster/start.py data1`.

Configuration is rendered from `templates`. Further arguments name parts: one part alone replaces this process. Settings
come from the environment; docs/operations/cluster.md lists them.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import pwd
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from string import Template

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
DATA_HOSTS = ("data1", "data2", "data3")
REDIS_HOSTS = DATA_HOSTS[:2]
WEB_HOSTS = ("web1", "web2")
WORKER_HOSTS = ("worker1", "worker2")
HOSTS = (*DATA_HOSTS, *WEB_HOSTS, *WORKER_HOSTS)
SECRETS = ("POSTGRES_PASSWORD", "REPLICATION_PASSWORD", "DATABASE_PASSWORD", "REDIS_PASSWORD", "PATRONI_PASSWORD")
ENGINES = ("etcd", "patroni", "room", "redis", "sentinel", "haproxy", "pgbouncer")
SERVICE = ("web", "worker", "scheduler")
_REWRITTEN_BY_ENGINE = ("redis.conf", "sentinel.conf")
_RESTART_SECONDS = 1.0
_STOP_SECONDS = 40.0
_PREPARES_SINCE = (1, 22)
"""The first version of PgBouncer that keeps prepared statements in transaction mode, as the service uses them."""


def parts_of(host: str) -> tuple[str, ...]:
    """Return the parts that run on a host."""
    if host in DATA_HOSTS:
        return ("etcd", *(("redis",) if host in REDIS_HOSTS else ()), "sentinel", "patroni", "room")
    return ("haproxy", "pgbouncer", *(("web",) if host in WEB_HOSTS else ("worker", "scheduler")))


def addresses(given: str) -> dict[str, str]:
    """Return the address of each host: `data1=10.0.0.1 data2=…`, or loopback. Raises: SystemExit."""
    found = {host: f"127.0.81.{number}" for number, host in enumerate(HOSTS, 1)}
    found |= dict(each.split("=", 1) for each in given.replace(",", " ").split())
    if unknown := found.keys() - set(HOSTS):
        raise SystemExit(f"CLUSTER_ADDRESSES: {', '.join(sorted(unknown))} is not a host of {', '.join(HOSTS)}")
    return found


@dataclass
class Host:
    """A host with the values of its templates."""

    name: str
    environment: Mapping[str, str]
    _running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        missing = [name for name in SECRETS if not self.environment.get(name)]
        if missing:
            raise SystemExit(f"set {', '.join(missing)}")
        if odd := [name for name in SECRETS if not re.fullmatch(r"[A-Za-z0-9_-]+", self.environment[name])]:
            raise SystemExit(f"{', '.join(odd)}: only letters, digits, - and _, because six formats quote differently")
        if not re.fullmatch(r"\d*", self.environment.get("LEADER_ROOM_MB", "")):
            raise SystemExit("LEADER_ROOM_MB: a number of megabytes, without a unit")
        self.addresses = addresses(self.environment.get("CLUSTER_ADDRESSES", ""))
        self.address = self.addresses[self.name]
        self.state = Path(self.environment.get("CLUSTER_STATE") or ROOT / "var" / "cluster") / self.name
        # As root, engines run as a user without privileges; PostgreSQL refuses to run as root.
        self.user = pwd.getpwnam(self.environment.get("CLUSTER_USER") or "nobody") if os.geteuid() == 0 else None

    @property
    def local(self) -> str:
        """The address at which the parts of this host reach each other."""
        return self.address if self.address.startswith("127.") else "127.0.0.1"

    @property
    def listen(self) -> str:
        """The address to listen at; a name, as in containers, stands for all."""
        with contextlib.suppress(ValueError):
            return str(ipaddress.ip_address(self.address))
        return "0.0.0.0"  # noqa: S104 - a container's own network

    def values(self) -> dict[str, str]:
        """Return what the templates may name."""
        chosen = {"MAX_CONNECTIONS": "100", "SHARED_BUFFERS": "128MB", "POOL_SIZE": "20", **self.environment}
        return {
            **{name: chosen[name] for name in (*SECRETS, "MAX_CONNECTIONS", "SHARED_BUFFERS", "POOL_SIZE")},
            **self.addresses,
            **{f"{host}_PATTERN": re.escape(address) for host, address in self.addresses.items()},
            "ETCD_STATE": self.environment.get("ETCD_STATE") or "new",
            "HOST": self.name,
            "STATE": str(self.state),
            "ADDRESS": self.address,
            "LISTEN": self.listen,
            "LOCAL": self.local,
            "POSTGRES_BIN": self.environment.get("POSTGRES_BIN") or _postgres_bin(),
            "REPLICA_OF": f"replicaof {self.addresses['data1']} 6379" if self.name == "data2" else "",
            "MAX_PREPARED_STATEMENTS": "max_prepared_statements = 200" if self._pooler_prepares() else "",
        }

    def render(self) -> None:
        """Write the configuration. What an engine rewrites is written once."""
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        values = self.values()
        for template in sorted((HERE / "templates").iterdir()):
            path = self.state / template.name
            if template.name in _REWRITTEN_BY_ENGINE and path.exists():
                continue
            path.touch(mode=0o600)
            path.write_text(Template(template.read_text()).substitute(values))
        # A copy, because the user of the engines may not be permitted to read this folder.
        for name in ("create-database.sh", "room.py"):
            shutil.copy(HERE / name, self.state)
        if self.user is not None:
            for path in (self.state, *self.state.iterdir()):
                os.chown(path, self.user.pw_uid, self.user.pw_gid)

    def command(self, part: str) -> list[str]:
        """Return the command line of a part."""
        redis = shutil.which("valkey-server") or shutil.which("redis-server") or "redis-server"
        commands = {
            "etcd": f"etcd --config-file {self.state}/etcd.yml",
            "patroni": f"patroni {self.state}/patroni.yml",
            "room": f"python3 {self.state}/room.py {self.name} {self.listen} {self.address} {self.state}",
            "redis": f"{redis} {self.state}/redis.conf",
            "sentinel": f"{redis} {self.state}/sentinel.conf --sentinel",
            "haproxy": f"haproxy -W -db -f {self.state}/haproxy.cfg"
            + (f" -f {self.state}/haproxy-public.cfg" if self.name in WEB_HOSTS else ""),
            "pgbouncer": f"pgbouncer -q {self.state}/pgbouncer.ini",
            **_procfile(),
        }
        return shlex.split(commands[part])

    def environment_of(self, part: str) -> dict[str, str]:
        """Return the environment of a part: only the service gets the secrets of the service."""
        bare = {name: self.environment[name] for name in ("PATH", "LANG") if name in self.environment}
        if part in ENGINES:
            names = {"patroni": ("DATABASE_PASSWORD",), "room": ("LEADER_ROOM_MB",)}.get(part, ())
            extra = {name: self.environment[name] for name in names if name in self.environment}
            if part == "patroni":
                extra["PATH"] = f"{self.values()['POSTGRES_BIN']}:{bare.get('PATH', os.defpath)}"
            return {**bare, "HOME": str(self.state), **extra}
        password, prepares = self.environment["DATABASE_PASSWORD"], self._pooler_prepares()
        return {
            **{name: value for name, value in self.environment.items() if name not in SECRETS},
            "DATABASE_URL": f"postgresql://purser:{password}@{self.local}:6432/purser",
            "DATABASE_REPLICA_URL": f"postgresql://purser:{password}@{self.local}:6432/purser_reports",
            "REDIS_URL": f"redis://:{self.environment['REDIS_PASSWORD']}@{self.local}:6379/0",
            "PORT": "8080",
            "GUNICORN_CMD_ARGS": f"--bind {self.listen}:8080",
            "TRUSTED_PROXY_HOPS": self.environment.get("TRUSTED_PROXY_HOPS", "1"),
            "AUDIT_WITNESS_FILE": self.environment.get("AUDIT_WITNESS_FILE", str(self.state / "audit-heads.log")),
            **({} if prepares else {"DATABASE_PREPARED_STATEMENTS": "0"}),
        }

    def run(self, parts: tuple[str, ...]) -> None:
        """Run the parts until SIGTERM or Ctrl-C."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, _interrupt)
        try:
            while True:
                for part in parts:
                    self._keep(part)
                time.sleep(_RESTART_SECONDS)
        except KeyboardInterrupt:
            pass
        finally:
            self._stop()

    def replace_process(self, part: str) -> None:
        """Become a part, as containers do."""
        command = self.command(part)
        os.execvpe(command[0], command, self.environment_of(part))  # noqa: S606

    def _keep(self, part: str) -> None:
        """Start a part that does not run."""
        process = self._running.get(part)
        if process is not None and process.poll() is None:
            return
        if process is not None:
            print(f"{self.name}: {part} ended with {process.returncode}", flush=True)  # noqa: T201
        account = {} if self.user is None or part in SERVICE else {"user": self.user.pw_uid, "group": self.user.pw_gid}
        with (self.state.parent / f"{self.name}-{part}.log").open("ab") as log:
            self._running[part] = subprocess.Popen(  # type: ignore[call-overload] # noqa: S603 - our own command lines
                self.command(part), cwd=ROOT if part in SERVICE else self.state, env=self.environment_of(part),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, extra_groups=None, **account,
            )  # fmt: skip
        # A full disk must not end what starts the parts again.
        with contextlib.suppress(OSError):
            (self.state / f"{part}.pid").write_text(str(self._running[part].pid))

    def _stop(self) -> None:
        # What serves clients ends first, and the database after all that uses it.
        for part in reversed(tuple(self._running)):
            self._running[part].terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in self._running.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()

    def _pooler_prepares(self) -> bool:
        if shutil.which("pgbouncer", path=self.environment.get("PATH")) is None:
            return True
        shown = subprocess.run(["pgbouncer", "--version"], capture_output=True, text=True, check=True).stdout  # noqa: S607
        found = re.search(r"(\d+)\.(\d+)", shown)
        return found is not None and (int(found[1]), int(found[2])) >= _PREPARES_SINCE


def _procfile() -> dict[str, str]:
    lines = (ROOT / "Procfile").read_text().splitlines() if (ROOT / "Procfile").exists() else []
    return {name: command.strip() for name, _, command in (line.partition(":") for line in lines if line)}


def _postgres_bin() -> str:
    newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    return str(newest[-1]) if newest else "/usr/bin"


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    """Run the chosen host."""
    name, *chosen = sys.argv[1:] or ("",)
    if name not in HOSTS or set(chosen) - set(parts_of(name)):
        parts = "\n".join(f"  {host}: {', '.join(parts_of(host))}" for host in HOSTS)
        raise SystemExit(f"usage: start.py HOST [PART ...]\n{parts}")
    host = Host(name, os.environ)
    host.render()
    if len(chosen) == 1:
        host.replace_process(chosen[0])
    host.run(tuple(chosen) or parts_of(name))


if __name__ == "__main__":
    main()
