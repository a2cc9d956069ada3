from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from launcher import environment

REPOSITORY = Path(__file__).resolve().parents[2]


def _pins(name: str) -> dict[str, set[str]]:
    """Return the hashes of each pinned requirement of a lock file."""
    pins: dict[str, set[str]] = {}
    current = ""
    for line in (REPOSITORY / name).read_text().splitlines():
        if match := re.match(r"([a-z0-9][^ ;\\]*==[^ ;\\]+)", line):
            current = match[1]
            pins[current] = set()
        pins.setdefault(current, set()).update(re.findall(r"--hash=(\S+)", line))
    pins.pop("", None)
    return pins


def test_the_development_lock_holds_every_pin_of_the_production_lock() -> None:
    runtime, development = _pins("requirements.txt"), _pins("requirements-dev.txt")
    assert len(runtime) > 50
    assert all(hashes for hashes in runtime.values())
    assert {pin: development.get(pin) for pin in runtime} == runtime


@pytest.fixture
def work_tree(tmp_path: Path) -> Path:
    """Yield a work tree with empty lock files, so that installation is real and fast."""
    shutil.copytree(REPOSITORY / "launcher", tmp_path / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
    for name in (environment.RUNTIME_LOCK, environment.DEVELOPMENT_LOCK):
        (tmp_path / name).write_text("# nothing\n")
    return tmp_path


def _bootstrap(work_tree: Path, requirements: str, **settings: str) -> subprocess.CompletedProcess[str]:
    # With uv on PATH and an empty lock file, nothing is downloaded.
    path = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
    return subprocess.run(
        ["sh", "launcher/bootstrap.sh", requirements],
        cwd=work_tree,
        env={"HOME": str(work_tree), "PATH": path, "PIP_NO_INDEX": "1", **settings},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )


def test_an_environment_is_created_once_and_again_when_interrupted_moved_or_outdated(work_tree: Path) -> None:
    first = _bootstrap(work_tree, environment.DEVELOPMENT_LOCK)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Creating .venv" in first.stdout
    for requirements in (environment.DEVELOPMENT_LOCK, environment.RUNTIME_LOCK):
        again = _bootstrap(work_tree, requirements)
        assert (again.returncode, again.stdout) == (0, "")

    (work_tree / environment.RUNTIME_LOCK).write_text("# something else\n")
    changed = _bootstrap(work_tree, environment.RUNTIME_LOCK)
    assert "Installing requirements.txt" in changed.stdout
    assert "Creating .venv" not in changed.stdout

    (work_tree / ".venv" / "unfinished").touch()
    _creates_for_a_user_without_a_home(work_tree, "/nonexistent")
    shutil.rmtree(work_tree / "var")

    moved = work_tree.with_name("moved")
    work_tree.rename(moved)
    _creates_for_a_user_without_a_home(moved, "")


def _creates_for_a_user_without_a_home(work_tree: Path, home: str) -> None:
    """Create the environment; downloads are kept in the work tree."""
    created = _bootstrap(work_tree, environment.RUNTIME_LOCK, HOME=home)
    assert created.returncode == 0
    assert "Creating .venv" in created.stdout
    assert "cache" not in created.stdout + created.stderr
    assert (work_tree / "var" / "home").is_dir()


def test_two_concurrent_starts_install_once_and_compile_what_the_service_imports(work_tree: Path) -> None:
    (work_tree / "app").mkdir()
    (work_tree / "app" / "factory.py").write_text("import dependency\n")
    (work_tree / "dependency.py").write_text("")
    separate = work_tree / "bytecode"
    for folder, settings in ((work_tree, {}), (separate, {"PYTHONPYCACHEPREFIX": str(separate)})):
        start = partial(_bootstrap, work_tree, environment.RUNTIME_LOCK, PYTHONDONTWRITEBYTECODE="1", **settings)
        with ThreadPoolExecutor() as threads:
            both = [each.result() for each in [threads.submit(start) for _ in range(2)]]
        assert [(each.returncode, each.stderr) for each in both] == [(0, ""), (0, "")]
        printed = "".join(each.stdout for each in both)
        assert (printed.count("Creating .venv"), printed.count("Installing")) == (int(folder == work_tree), 1)
        compiled = {path.name.split(".")[0] for path in folder.rglob("*.pyc")}
        assert {"factory", "dependency"} <= compiled
        shutil.rmtree(work_tree / "app" / "__pycache__", ignore_errors=True)
        (work_tree / environment.RUNTIME_LOCK).write_text("# something else\n")


def test_a_folder_that_cannot_be_written_is_named_in_one_line(work_tree: Path) -> None:
    (work_tree / ".venv").write_text("a file, because permissions do not stop root")
    answer = _bootstrap(work_tree, environment.RUNTIME_LOCK)
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert f"/.venv': make {work_tree} writable" in answer.stderr


def _write_script(path: Path, command: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{command}\n")
    path.chmod(0o755)


@pytest.mark.parametrize(("first", "second", "fastest"), [(9000, 800, "second"), (800, 9000, "first")])
def test_the_fastest_of_several_pythons_is_taken(work_tree: Path, first: int, second: int, fastest: str) -> None:
    for name, microseconds in (("first", first), ("second", second)):
        path = work_tree / name / "python3.11"
        _write_script(path, f'[ "$1" = -c ] && printf "%s\\n" Loading "{microseconds} {path}" || echo {name} "$@"')
    _write_script(work_tree / "first" / "python3.12", "exit 1")
    path = os.pathsep.join([str(work_tree / "first"), str(work_tree / "second"), "/usr/bin", "/bin"])
    answer = _bootstrap(work_tree, environment.RUNTIME_LOCK, PATH=path)
    assert answer.stdout == f"{fastest} launcher/environment.py {environment.RUNTIME_LOCK}\n", answer.stderr


def test_without_a_suitable_python_one_line_explains_the_solution(work_tree: Path) -> None:
    tools = work_tree / "tools"
    tools.mkdir()
    for tool in ("sh", "dirname", "cat", "cksum", "sort"):
        (tools / tool).symlink_to(str(shutil.which(tool)))
    _write_script(tools / "python3", "exit 1")  # one that is too old, as on macOS
    answer = _bootstrap(work_tree, environment.RUNTIME_LOCK, PATH=str(tools))
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith("Python 3.11, 3.12 or 3.13 with venv is required:")
