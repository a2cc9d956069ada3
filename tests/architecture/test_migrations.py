"""Migrations: forward, back and forward again on both databases, and never a drift from the models."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from flask import Flask
from flask_migrate import downgrade, upgrade
from sqlalchemy import inspect

from app.extensions import db
from tests.support.applications import make_app, settings_for
from tests.support.servers import Postgres

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=["sqlite", "postgres"])
def empty_app(request: pytest.FixtureRequest, tmp_path: Path) -> Flask:
    if request.param == "sqlite":
        return make_app(settings_for(f"sqlite:///{tmp_path}/empty.sqlite"))
    server: Postgres = request.getfixturevalue("postgres")
    return make_app(settings_for(server.create_database("purser_migrations")))


def drift() -> list[Any]:
    with db.engine.connect() as connection:
        opts = {"compare_type": True, "include_object": lambda _item, name, *_rest: not is_search_index(name)}
        context = MigrationContext.configure(connection, opts=opts)
        return list(compare_metadata(context, db.metadata))


def is_search_index(name: str | None) -> bool:
    """It is of another kind on each database, and described by no model."""
    return name is not None and name.startswith("search_trigrams")


def tables() -> set[str]:
    names = set(inspect(db.engine).get_table_names()) - {"alembic_version"}
    return {name for name in names if not is_search_index(name)}


def test_migrations_go_up_down_and_up_again_without_drift(empty_app: Flask) -> None:
    with empty_app.app_context():
        upgrade()
        assert drift() == []
        assert tables() == set(db.metadata.tables)
        downgrade(revision="base")
        assert tables() == set()
        upgrade()
        assert drift() == []
        db.engine.dispose()


def test_migrations_do_not_depend_on_the_application_of_their_day() -> None:
    for path in (ROOT / "migrations" / "versions").glob("*.py"):
        assert "import app" not in path.read_text()
        assert "app." not in path.read_text()


def test_every_table_is_known_to_the_application_alone() -> None:
    declared = set()
    for path in (ROOT / "app").rglob("*.py"):
        declared |= set(re.findall(r'__tablename__ = "([a-z_]+)"', path.read_text()))
    program = "from app.factory import create_app; from app.extensions import db; print(*db.metadata.tables)"
    known = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert set(known.stdout.split()) == declared
