"""Migrations: upgrade, downgrade and upgrade again on both databases, without drift from the models."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from flask import Flask
from flask_migrate import downgrade, upgrade
from sqlalchemy import CheckConstraint, Connection, Table, event, inspect, text
from sqlalchemy.exc import OperationalError

from app.core.identifiers import new_id
from app.extensions import db
from app.status import migrations
from tests.support import filled
from tests.support.applications import make_app, settings_for
from tests.support.servers import Postgres
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "postgres"])
def empty_app(request: pytest.FixtureRequest, tmp_path: Path) -> Flask:
    if request.param == "sqlite":
        return _app(f"sqlite:///{tmp_path}/empty.sqlite")
    server: Postgres = request.getfixturevalue("postgres")
    return _app(server.create_database("purser_migrations"))


def _app(database_url: str) -> Flask:
    app = make_app(settings_for(database_url))
    migrations.bind(app)
    return app


def drift() -> list[Any]:
    with db.engine.connect() as connection:
        opts = {"compare_type": True, "include_object": lambda _item, name, *_rest: not is_search_index(name)}
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, db.metadata))


def is_search_index(name: str | None) -> bool:
    """Return whether an index is for search: it differs by database, and no model describes it."""
    return name is not None and name.startswith("search_trigrams")


def checks() -> dict[str, list[str]]:
    """Return the names of the checks of every table: a batch operation on SQLite can lose or double them."""
    there = inspect(db.engine)
    return {name: sorted(str(each["name"]) for each in there.get_check_constraints(name)) for name in tables()}


def named_checks(table: Table) -> Iterator[str]:
    return (str(each.name) for each in table.constraints if isinstance(each, CheckConstraint))


def tables() -> set[str]:
    names = set(inspect(db.engine).get_table_names()) - {"alembic_version"}
    return {name for name in names if not is_search_index(name)}


def test_migrations_go_up_down_and_up_again_without_drift(empty_app: Flask) -> None:
    with empty_app.app_context():
        upgrade()
        assert drift() == []
        assert tables() == set(db.metadata.tables)
        assert checks() == {name: sorted(named_checks(table)) for name, table in db.metadata.tables.items()}
        downgrade(revision="base")
        assert tables() == set()
        upgrade()
        assert drift() == []
        db.engine.dispose()


def revisions() -> list[str]:
    """Return all revisions, oldest first."""
    directory = ScriptDirectory(str(ROOT / "migrations"))
    return [script.revision for script in reversed(list(directory.walk_revisions()))]


@contextmanager
def looking() -> Iterator[Connection]:
    with db.engine.connect() as connection:
        yield connection


def test_rows_survive_every_downgrade_and_upgrade(empty_app: Flask) -> None:
    with empty_app.app_context():
        upgrade()
        with looking() as connection:
            filled.fill(connection)
            before = filled.held(connection)
        assert set(before) == set(db.metadata.tables)
        assert all(len(next(iter(columns.values()))) == filled.ROWS for columns in before.values())
        for target in [*reversed(revisions()[:-1]), "base"]:
            downgrade(revision=target)
            with looking() as connection:
                after = filled.held(connection)
            assert filled.kept(before, after) == []
            before = after
        assert before == {}
        db.engine.dispose()


def test_a_database_of_any_age_upgrades_without_losing_rows(empty_app: Flask) -> None:
    with empty_app.app_context():
        upgrade()
        with looking() as connection:
            fresh = filled.shape(connection)
        downgrade(revision="base")
        before: dict[str, dict[str, list[Any]]] = {}
        for revision in revisions():
            upgrade(revision=revision)
            with looking() as connection:
                assert filled.kept(before, filled.held(connection)) == []
                # Rows of this revision, so that later migrations find more than their own rows.
                filled.fill(connection)
                before = filled.held(connection)
        assert drift() == []
        with looking() as connection:
            assert filled.shape(connection) == fresh
        db.engine.dispose()


@pytest.mark.postgres
def test_a_scan_state_is_no_further_than_its_reading(empty_app: Flask) -> None:
    marks = [("base", '{"number": 7}', 9, 7), ("base", '{"number": 9}', 7, 7), ("solana", "{}", 9, 9)]
    with empty_app.app_context():
        upgrade(revision="0054")
        with db.engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(text("SET session_replication_role = replica"))
            for chain, mark, block, _ in marks:
                values = {"id": new_id(), "chain": chain, "mark": mark, "block": block}
                connection.execute(text(_INSERT_MARK), values)
        upgrade()
        with looking() as connection:
            found = sorted(connection.execute(text("SELECT chain, block_number FROM deposit_marks")).all())
        assert found == sorted((chain, block) for chain, _, _, block in marks)
        db.engine.dispose()


_INSERT_MARK = (
    "INSERT INTO deposit_marks (wallet_id, chain, mark, block_number, revision) VALUES (:id, :chain, :mark, :block, 0)"
)


def test_an_upgrade_during_long_reads_delays_no_query_for_long(postgres: Postgres) -> None:
    """A migration that waits for readers blocks later queries, so it ends after two seconds and is retried.

    The limit is for all its tables: with two seconds for each, queries of the first wait for readers of the others.
    """
    app = _app(postgres.create_database("purser_busy_migrations"))
    with app.app_context():
        upgrade(revision="0028")
        upgraded, answered = threading.Event(), threading.Event()
        failed: list[OperationalError] = []

        def migrate() -> None:
            with app.app_context():
                upgrade(revision="0029")
            upgraded.set()

        def ask() -> None:
            with app.app_context(), db.engine.connect() as other:
                other.exec_driver_sql("SET statement_timeout = '4s'")
                try:
                    other.execute(text("SELECT count(*) FROM transactions"))
                except OperationalError as error:
                    failed.append(error)
            answered.set()

        migrating, asking = threading.Thread(target=migrate), threading.Thread(target=ask)
        with ExitStack() as stack:
            readers = {table: stack.enter_context(_reading(table)) for table in _CHANGED[1:]}
            migrating.start()
            wait_until(lambda: _waits_for(_CHANGED[1:]), 30, what="the upgrade to wait for a reader")
            asking.start()
            for table, reader in readers.items():
                # Each reader ends just before the timeout of a single table.
                wait_until(
                    lambda table=table: answered.is_set() or _waits_for([table], ms=1500), 30,
                    what=f"the upgrade to wait for {table}, or to have ended",
                )  # fmt: skip
                if not answered.is_set():
                    reader.close()
            asking.join(timeout=30)
            assert failed == []
            assert answered.is_set()
            assert not upgraded.is_set()
        migrating.join(timeout=90)
        assert upgraded.is_set()
        upgrade()
        assert drift() == []
        db.engine.dispose()


# In the order of migration 0029.
_CHANGED = ("agents", "transactions", "signed_attempts", "bridges")


@contextmanager
def _reading(table: str) -> Iterator[Connection]:
    with db.engine.connect() as reader:
        reader.execute(text(f"SELECT count(*) FROM {table}"))  # noqa: S608
        yield reader


def _waits_for(tables: Sequence[str], *, ms: int = 0) -> bool:
    with db.engine.connect() as connection:
        waiting = text(
            "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
            " AND relation = ANY(CAST(:tables AS regclass[]))"
            " AND clock_timestamp() - waitstart >= :ms * interval '1 ms'"
        )
        return bool(connection.execute(waiting, {"tables": list(tables), "ms": ms}).scalar_one())


@pytest.mark.postgres
def test_a_migration_of_several_tables_locks_them_in_one_statement(postgres: Postgres) -> None:
    """One by one, each lock waits for readers while queries of the tables before it wait."""
    app = _app(postgres.create_database("purser_migrations"))
    with app.app_context():
        said: list[str] = []
        event.listen(db.engine, "before_cursor_execute", lambda *sent: said.append(sent[2]))
        for revision in revisions():
            before = tables()
            said.clear()
            upgrade(revision=revision)
            changed = {name for name in _CHANGES.findall("\n".join(said)) if name in before}
            if len(changed) > 1:
                locks = next(place for place, statement in enumerate(said) if "LOCK TABLE" in statement)
                assert "SET LOCAL statement_timeout = '2s'" in said[locks - 1], revision
                assert "SET LOCAL statement_timeout = 0" in said[locks + 1], revision
                assert changed <= set(re.findall(r"\w+", said[locks])), revision
                # One that is changed alone, in a transaction of its own.
                assert len(set(_CHANGES.findall("\n".join(said[:locks])))) <= 1, revision
        db.engine.dispose()


_CHANGES = re.compile(r"(?:ALTER TABLE|CREATE (?:UNIQUE )?INDEX \w+ ON) (\w+)")


def test_migrations_do_not_import_the_application() -> None:
    for path in (ROOT / "migrations" / "versions").glob("*.py"):
        assert "import app" not in path.read_text()
        assert "app." not in path.read_text()


def test_the_application_alone_registers_every_table() -> None:
    declared = set()
    for path in (ROOT / "app").rglob("*.py"):
        declared |= set(re.findall(r'__tablename__ = "([a-z_]+)"', path.read_text()))
    program = "from app.factory import create_app; from app.extensions import db; print(*db.metadata.tables)"
    known = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(known.stdout.split()) == declared
