"""The exit code of continuous integration: zero when checks and tests pass, and only then."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What the script would install where it is missing.
TOOLS = ("npm", "age", "rclone", "promtool", "pgbouncer", "redis-server", "chromium")


@pytest.mark.parametrize(("checks", "tests", "code"), [(0, 0, 0), (1, 0, 1), (0, 1, 1)])
def test_ci_fails_exactly_when_a_check_or_a_test_fails(tmp_path: Path, checks: int, tests: int, code: int) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "launcher").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    (tmp_path / "launcher" / "bootstrap.sh").write_text("exit 0\n")
    (tmp_path / "Makefile").write_text(f"check:\n\t@echo checked; exit {checks}\n")
    (tmp_path / "tools").mkdir()
    for script in (tmp_path / "test", *(tmp_path / "tools" / tool for tool in TOOLS)):
        script.write_text(f"#!/bin/sh\necho tested; exit {tests}\n")
        script.chmod(0o755)
    environment = {"PATH": f"{tmp_path / 'tools'}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    command = [tmp_path / ".ci" / "run"]
    run = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=120)
    assert (run.returncode, "tested" in run.stdout, "checked" in run.stdout) == (code, True, True), run.stderr
