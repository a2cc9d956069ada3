"""The Python package of `clients/python`, built and installed as its users install it."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from tests.support.published import PROGRAMS, environment, make_once

SOURCES = Path(__file__).resolve().parents[2] / "clients" / "python"
_SECONDS = 300
_LOCKS = [PROGRAMS / "python-sdk-build.txt", PROGRAMS / "python-sdk.txt"]


def built() -> list[Path]:
    """Return the sdist and the wheel that is built from it, built once for these sources."""
    folder = make_once("python-sdk-dist", [SOURCES, *_LOCKS], _build)
    return sorted([*folder.glob("*.tar.gz"), *folder.glob("*.whl")])


def installed() -> Path:
    """Return the programs of an environment that has the wheel with OpenAI's package, and nothing else."""
    wheel = built()[-1]
    folder = make_once("python-sdk-env", [SOURCES, *_LOCKS], lambda folder: _install_with_openai(wheel, folder))
    return folder / "env" / "bin"


def _install_with_openai(wheel: Path, folder: Path) -> None:
    install(wheel, folder / "env", extras="[openai]")


def _build(folder: Path) -> None:
    pinned = ["--build-constraints", str(PROGRAMS / "python-sdk-build.txt"), "--require-hashes"]
    _run(["uv", "build", "--quiet", *pinned, "--out-dir", str(folder), str(SOURCES)])


def install(package: Path, folder: Path, *, extras: str = "") -> Path:
    """Install a built package with what it requires into a new environment, and return the folder of its programs.

    The lock pins what is installed, and installs nothing that the package does not name.
    """
    _run(["uv", "venv", "--quiet", "--python", sys.executable, str(folder)])
    wanted = folder / "wanted.txt"
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    wanted.write_text(f"purser-sdk{extras} @ {package.as_uri()} --hash=sha256:{digest}\n")
    locked = ["--require-hashes", "-r", str(wanted), "-c", str(PROGRAMS / "python-sdk.txt")]
    building = ["--build-constraints", str(PROGRAMS / "python-sdk-build.txt")]
    _run(
        [
            "uv",
            "pip",
            "install",
            "--quiet",
            "--compile-bytecode",
            "--python",
            str(folder / "bin" / "python"),
            *locked,
            *building,
        ]
    )
    return folder / "bin"


def _run(command: list[str]) -> None:
    trusting = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **environment()}
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_SECONDS, env=trusting)
    assert ran.returncode == 0, ran.stderr
