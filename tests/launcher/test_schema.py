from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from launcher import schema


@pytest.fixture
def versions(tmp_path: Path) -> Path:
    folder = tmp_path / "versions"
    folder.mkdir()
    (folder / "0001_first.py").write_text('revision = "0001"\ndown_revision = None\n')
    (folder / "0002_second.py").write_text("revision: str = '0002'\ndown_revision: str | None = '0001'\n")
    return folder


def _database(folder: Path, *revisions: str) -> Path:
    path = folder / "test.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE alembic_version (version_num TEXT)")
        connection.executemany("INSERT INTO alembic_version VALUES (?)", [(revision,) for revision in revisions])
    return path


def test_a_database_at_the_newest_migration_is_current(tmp_path: Path, versions: Path) -> None:
    assert schema.is_current(_database(tmp_path, "0002"), versions)


@pytest.mark.parametrize("revisions", [(), ("0001",), ("0001", "0002"), ("0003",)])
def test_a_database_at_another_migration_is_not_current(
    tmp_path: Path, versions: Path, revisions: tuple[str, ...]
) -> None:
    assert not schema.is_current(_database(tmp_path, *revisions), versions)


def test_an_unreadable_database_is_not_current_and_not_created(tmp_path: Path, versions: Path) -> None:
    missing = tmp_path / "missing.sqlite"
    assert not schema.is_current(missing, versions)
    assert not missing.exists()
    missing.write_bytes(b"no database at all" * 100)
    assert not schema.is_current(missing, versions)
    assert not schema.is_current(_database(tmp_path, "0002"), tmp_path / "no migrations")
