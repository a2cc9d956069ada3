"""The schema's migrations: `flask db`, the commands of Flask-Migrate.

They are bound to an application when one of them is used: with Alembic they take 9 MB, which servers do not need.
"""

from pathlib import Path

from flask import Flask

from app.extensions import db

FOLDER = Path(__file__).resolve().parents[2] / "migrations"


def bind(app: Flask) -> None:
    """Add the commands, and what `migrations/env.py` reads, to an application."""
    from flask_migrate import Migrate  # noqa: PLC0415 - imports Alembic

    Migrate(app, db, directory=str(FOLDER), command="db", render_as_batch=True, compare_type=True)
