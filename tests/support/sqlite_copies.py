"""Copies of a SQLite database: a test's set-up is made once, and each test begins with a copy of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Generic, TypeVar

from flask import Flask

from app.extensions import db


def copy_database(database: Path, to: Path) -> None:
    """Copy a database with what its journal has, over one that may be in use."""
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(to)) as copy:
        copy.execute("PRAGMA synchronous=OFF")
        source.backup(copy)


Made = TypeVar("Made")


class FilledOnce(Generic[Made]):
    """A SQLite database that is filled for the first test and copied for the others of a module or session."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "filled.sqlite"
        self._made: Made | None = None

    def fill(self, app: Flask, make: Callable[[], Made]) -> Made:
        """Fill the empty database of an application; return what describes its rows, which `make` returned."""
        if self._made is None:
            self._made = make()
            copy_database(file_of(app), self._file)
        else:
            copy_database(self._file, file_of(app))
        return self._made


def file_of(app: Flask) -> Path:
    """Return the file of an application's SQLite database."""
    with app.app_context():
        return Path(str(db.engine.url.database))
