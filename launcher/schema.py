"""Whether an SQLite file has the newest schema, told at once instead of by a start of the service."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

_REVISION = re.compile(r"^revision\b[^=]*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)
_PARENTS = re.compile(r"^down_revision\b[^=]*=(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']")


def is_current(database: Path, versions: Path) -> bool:
    """Tell whether the file stands at the head of the migrations; False whenever that is not certain."""
    made: set[str] = set()
    followed: set[str] = set()
    for path in versions.glob("*.py"):
        text = path.read_text()
        made.update(_REVISION.findall(text))
        for parents in _PARENTS.findall(text):
            followed.update(_QUOTED.findall(parents))
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            held = {revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")}
    except sqlite3.Error:
        return False
    return bool(held) and held == made - followed
