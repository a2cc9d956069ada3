"""The start of a process imports what it needs, and takes a bounded multiple of the time that its libraries take."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from launcher.sandbox_secrets import GENERATORS
from workers.context import application

ROOT = Path(__file__).resolve().parents[2]
# Loaded where they are used, because each takes more than a tenth of a second of processor time.
_LATE = ("py_ecc", "spl.token.models", "sentry_sdk", "pywebpush", "playwright", "patchright", "sandbox", "launcher")
# Only commands migrate a database.
_LATE += ("alembic", "flask_migrate")
_REPORT = "\nimport sys; print(len(sys.modules), *[name for name in sys.argv[1:] if name in sys.modules])"


def _load(modules: str, tmp_path: Path, late: tuple[str, ...] = _LATE) -> tuple[float, int, list[str]]:
    """Import modules in a new process; return its processor seconds, the number of modules and the late ones."""
    return _run(f"import {modules}", tmp_path, late)


def _run(code: str, tmp_path: Path, late: tuple[str, ...]) -> tuple[float, int, list[str]]:
    environment = {
        **{name: generate() for name, generate in GENERATORS.items()},
        "PATH": os.environ["PATH"],
        "DATABASE_URL": f"sqlite:///{tmp_path / 'test.sqlite'}",
    }
    command = [sys.executable, "-c", f"{code}{_REPORT}", *late]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=200)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    number, *loaded = answer.stdout.splitlines()[-1].split()
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, int(number), loaded


# Named like this while `python -m` imports the package.
_JOBS = "import sys; sys.argv[0] = '-m'; import workers.{}; from workers.context import application; application()"
# What answers requests: routes with their documents, and the lists and libraries that only those use.
_OF_REQUESTS = ("app.serving", "app.cli", "app.mcp", "app.gateway.call", "genai_prices", "webauthn", "gunicorn")


@pytest.mark.parametrize(
    ("code", "most", "times", "late"),
    [
        ("import wsgi, server.worker", 2_460, 6.0, _LATE),
        (_JOBS.format("__main__"), 2_110, 5.5, _LATE + _OF_REQUESTS),
        (_JOBS.format("schedule"), 2_110, 5.5, _LATE + _OF_REQUESTS),
    ],
    ids=["web", "worker", "scheduler"],
)
def test_a_process_imports_no_more_than_its_budget(
    tmp_path: Path, code: str, most: int, times: float, late: tuple[str, ...]
) -> None:
    runs = [_run(code, tmp_path, late) for _ in range(2)]
    assert [loaded for _, _, loaded in runs] == [[], []]
    assert max(number for _, number, _ in runs) <= most
    # Load and missing bytecode slow down both.
    libraries = min(_load("flask, sqlalchemy.orm", tmp_path)[0] for _ in range(2))
    assert min(seconds for seconds, _, _ in runs) < times * libraries


def test_a_process_without_routes_has_all_tables(tmp_path: Path) -> None:
    # Else jobs would audit, reseal and erase fewer of them than there are.
    code = (
        "from app.factory import create_app; from app.extensions import db; create_app(serves=False);"
        "before = set(db.metadata.tables); import app.serving, workers.sweeps; assert before == set(db.metadata.tables)"
    )
    _run(code, tmp_path, ())


def test_jobs_use_the_application_that_was_loaded_before_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = SimpleNamespace(app=object())
    monkeypatch.setitem(sys.modules, "wsgi", loaded)
    # Without what the function remembers.
    assert application.__wrapped__() is loaded.app


@pytest.mark.parametrize("arguments", [["--help"], ["keys", "--help"]])
def test_a_list_of_commands_costs_no_more_than_flask(tmp_path: Path, arguments: list[str]) -> None:
    code = f"from flask.cli import cli\ntry: cli.main(['--app', 'wsgi', *{arguments}])\nexcept SystemExit: pass"
    seconds, number, late = _run(code, tmp_path, ("app.factory", "app.config", "sqlalchemy", "pydantic"))
    flask, flask_number, _ = _load("flask.cli, dotenv", tmp_path)
    assert late == []
    assert number <= flask_number + 20
    assert seconds < 3 * flask


def test_a_command_of_the_launcher_imports_nothing_of_the_service(tmp_path: Path) -> None:
    code = "from launcher.__main__ import main\nmain(['true'])"
    _, number, late = _run(code, tmp_path, ("app", "launcher.service", "http.client", "pydantic", "flask"))
    assert late == []
    assert number <= 150
