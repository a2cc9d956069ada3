"""Check of the schema version of an SQLite file, faster than a start of the service."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

_REVISION = re.compile(r"^revision\b[^=]*=\s*[\"']([^\"']+)[\"']", re.MULTILINE)
_PARENTS = re.compile(r"^down_revision\b[^=]*=(.*)$", re.MULTILINE)
_QUOTED = re.compile(r"[\"']([^\"']+)[\"']")


def is_current(database: Path, versions: Path) -> bool:
    """Return whether the schema is at the newest migration; False if that is uncertain."""
    revisions: set[str] = set()
    superseded: set[str] = set()
    for path in versions.glob("*.py"):
        text = path.read_text()
        revisions.update(_REVISION.findall(text))
        for parents in _PARENTS.findall(text):
            superseded.update(_QUOTED.findall(parents))
    try:
        with contextlib.closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
            stamped = {revision for (revision,) in connection.execute("SELECT version_num FROM alembic_version")}
    except sqlite3.Error:
        return False
    return bool(stamped) and stamped == revisions - superseded
