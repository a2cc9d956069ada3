"""The npm package in `clients/typescript`: generated, built and installed as its users do."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.published import environment, make_node, make_once

SOURCES = Path(__file__).resolve().parents[2] / "clients" / "typescript"
GENERATED = ("schema.ts", "operations.ts", "errors.ts")
_SECONDS = 180


def run(folder: Path, *command: str, variables: Mapping[str, str] | None = None) -> str:
    """Run a command of Node in a folder and return what it printed."""
    ran = subprocess.run(
        command, cwd=folder, check=False, capture_output=True, text=True, timeout=_SECONDS,
        env={**environment(), **(variables or {})},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def copy(folder: Path) -> Path:
    """Return a copy of the sources, with the locked tools."""
    copied = folder / "package"
    shutil.copytree(SOURCES, copied, ignore=shutil.ignore_patterns("node_modules", "dist"))
    (copied / "node_modules").symlink_to(make_node(SOURCES) / "node_modules")
    return copied


def generate(document: Mapping[str, Any], folder: Path) -> dict[str, str]:
    """Return the generated files, by name, for an OpenAPI document."""
    copied = copy(folder)
    (folder / "openapi.json").write_text(json.dumps(document))
    run(copied, "npm", "run", "--silent", "generate", "--", str(folder / "openapi.json"))
    return {name: (copied / "src" / name).read_text() for name in GENERATED}


def built() -> Path:
    """Return the tarball that `npm pack` makes, made once for these sources."""
    [tarball] = make_once("typescript-sdk", [SOURCES], _build).glob("*.tgz")
    return tarball


def _build(folder: Path) -> None:
    copied = copy(folder)
    run(copied, "npm", "pack", "--silent", "--pack-destination", str(folder))
    shutil.rmtree(copied)


def install(folder: Path) -> Path:
    """Install the tarball in an empty folder, and return that."""
    tarball = built()
    folder.mkdir()
    run(folder, "npm", "install", "--offline", "--ignore-scripts", "--no-audit", "--no-fund", str(tarball))
    return folder
