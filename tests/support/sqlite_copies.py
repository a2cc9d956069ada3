"""Copies of a SQLite database: a test's set-up is made once, and each test begins with a copy of it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from flask import Flask

from app.extensions import db


def copy_database(database: Path, to: Path) -> None:
    """Copy a database with what its journal has, over one that may be in use."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as copy:
        copy.execute("PRAGMA synchronous=OFF")
        source.backup(copy)


def file_of(app: Flask) -> Path:
    """Return the file of an application's SQLite database."""
    with app.app_context():
        return Path(str(db.engine.url.database))
