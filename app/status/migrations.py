"""The schema's migrations: `flask db`, the commands of Flask-Migrate.

They are bound to an application when one of them is used: with Alembic they take 9 MB, which servers do not need.
"""

from pathlib import Path
from typing import Any

import click
from flask import Flask

from app.extensions import db

FOLDER = Path(__file__).resolve().parents[2] / "migrations"
_NAME = "db"


def bind(app: Flask) -> None:
    """Add the commands, and what `migrations/env.py` reads, to an application."""
    from flask_migrate import Migrate  # noqa: PLC0415 - imports Alembic

    Migrate(app, db, directory=str(FOLDER), command=_NAME, render_as_batch=True, compare_type=True)


class MigrationCommands(click.Command):
    """Stands for the commands until one of them is used."""

    def __init__(self, app: Flask) -> None:
        super().__init__(_NAME, short_help="Perform database migrations.")
        self._app = app

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        bind(self._app)
        return self._app.cli.commands[_NAME].make_context(*arguments, **options)
