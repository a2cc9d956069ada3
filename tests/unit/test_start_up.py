"""The start of a process imports what it needs, and takes a bounded multiple of the time that its libraries take."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.sandbox_secrets import GENERATORS

ROOT = Path(__file__).resolve().parents[2]
# Loaded where they are used, because each takes more than a tenth of a second of processor time.
_LATE = ("py_ecc", "spl.token.models", "sentry_sdk", "pywebpush", "playwright", "patchright", "sandbox", "launcher")
# Only commands migrate a database.
_LATE += ("alembic", "flask_migrate")
_REPORT = "\nimport sys; print(len(sys.modules), *[name for name in sys.argv[1:] if name in sys.modules])"


def _load(modules: str, tmp_path: Path) -> tuple[float, int, list[str]]:
    """Import modules in a new process; return its processor seconds, the number of modules and the late ones."""
    environment = {
        **{name: generate() for name, generate in GENERATORS.items()},
        "PATH": os.environ["PATH"],
        "DATABASE_URL": f"sqlite:///{tmp_path / 'test.sqlite'}",
    }
    command = [sys.executable, "-c", f"import {modules}{_REPORT}", *_LATE]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    number, *late = answer.stdout.split()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(number), late


@pytest.mark.parametrize(
    ("modules", "most"), [("wsgi, server.worker", 2_550), ("wsgi, workers.__main__, workers.schedule", 2_550)]
)
def test_a_process_imports_no_more_than_its_budget(tmp_path: Path, modules: str, most: int) -> None:
    seconds, number, late = _load(modules, tmp_path)
    assert late == []
    assert number <= most
    libraries, _, _ = _load("flask, sqlalchemy.orm", tmp_path)
    # Seven times on an idle machine. Load and missing bytecode slow down both.
    assert seconds < 30 * libraries
