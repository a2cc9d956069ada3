"""Generators and checkers of OpenAPI documents: none warns, and the generated code compiles strictly and runs."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.conftest import Scene
from tests.support.published import PROGRAMS, environment, make_node, make_python, newer_node

pytestmark = [pytest.mark.timeout(1800)]

GENERATORS = PROGRAMS.parent / "generators"
_WARNINGS = ("warn", "skip", "omitted", "unsupported")


@pytest.fixture
def folder(scene: Scene, tmp_path: Path) -> Path:
    """A folder with the document that the service serves, and the programs of this test."""
    document = scene.service.get("/openapi.json", scene.key)
    (tmp_path / "openapi.json").write_text(json.dumps(document, indent=1))
    for path in GENERATORS.iterdir():
        if not path.name.startswith("package"):
            shutil.copy(path, tmp_path)
    return tmp_path


def _run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a program and return what it printed. Its folder precedes others in PATH."""
    first = Path(command[0]).parent
    settings = {**environment(), "NO_COLOR": "1", "CI": "1", "PATH": f"{first}:{environment()['PATH']}"}
    ran = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
        env=settings,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout + ran.stderr


def _run_node(folder: Path, program: str, *arguments: str) -> str:
    modules = make_node(GENERATORS) / "node_modules"
    if not (folder / "node_modules").exists():
        (folder / "node_modules").symlink_to(modules)
    return _run([newer_node(), modules / ".bin" / program, *arguments], folder)


def test_typescript_is_generated_without_a_warning_compiles_strictly_and_runs(folder: Path, scene: Scene) -> None:
    printed = _run_node(folder, "openapi-typescript", "openapi.json", "-o", "types.ts")
    printed += _run_node(folder, "openapi-ts", "-i", "openapi.json", "-o", "sdk")
    assert not [word for word in _WARNINGS if word in printed.lower()], printed
    assert _run_node(folder, "tsc", "-p", ".") == ""
    # As a module that Node loads: what is imported has no extension.
    emitted = ["--noCheck", "--noEmit", "false", "--outDir", "out", "--module", "commonjs"]
    emitted += ["--moduleResolution", "node10"]
    assert _run_node(folder, "tsc", "-p", ".", *emitted) == ""
    done = json.loads(_run([newer_node(), "out/run.js", scene.service.url], folder))
    assert done.keys() == {"openapi-typescript", "openapi-ts"}
    for registered, *listed in done.values():
        assert listed == [registered]


def test_python_is_generated_without_a_warning_compiles_strictly_and_runs(folder: Path, scene: Scene) -> None:
    bin_folder = make_python("generators.txt").parent
    printed = _run(
        [
            bin_folder / "openapi-python-client", "generate", "--path", "openapi.json", "--meta", "none",
            "--output-path", "generated", "--config", "openapi-python-client.yml", "--fail-on-warning",
        ],
        folder,
    )  # fmt: skip
    assert not [word for word in _WARNINGS if word in printed.lower()], printed
    _run([bin_folder / "mypy", "--strict", "--config-file", "mypy.ini", "generated", "use.py"], folder)
    done = json.loads(_run([bin_folder / "python", "use.py", scene.service.url], folder))
    assert done["wallets"] == [done["registered"]]
    assert done["answered"] == 200
    assert scene.upstream.url


@pytest.mark.parametrize(
    "command",
    [
        ("redocly", "lint", "openapi.json", "--config", "redocly.yaml", "--max-problems", "1000"),
        ("spectral", "lint", "openapi.json", "--ruleset", "spectral.yaml", "--fail-severity", "hint"),
    ],
    ids=["redocly", "spectral"],
)
def test_linters_find_nothing(folder: Path, command: tuple[str, ...]) -> None:
    printed = _run_node(folder, *command)
    assert " warning" not in printed, printed
