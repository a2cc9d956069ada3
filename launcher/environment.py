"""Installs a hash-locked requirements file into `.venv`: `python launcher/environment.py requirements.txt`.

Run by bootstrap.sh under whatever Python it found, before anything is installed. It only adds packages, so
that `./run` after `./test` keeps the test tools. An incomplete installation is replaced by a new one.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME_LOCK = "requirements.txt"
DEVELOPMENT_LOCK = "requirements-dev.txt"
_OWN_CODE = (
    "app", "commands.py", "gunicorn.conf.py", "launcher", "migrations", "sandbox", "server", "shopper", "signer",
    "solana_node", "workers", "wsgi.py",
)  # fmt: skip
_LOADED_MODULES = (
    "app.factory", "app.wiring", "server.worker", "workers.__main__", "workers.schedule", "workers.purchases",
    "flask.cli", "gunicorn.app.wsgiapp", "spl.token.instructions", "web3.contract", "alembic.command",
    "sandbox.__main__",
)  # fmt: skip
_LOAD = """
import contextlib, importlib, sys
for name in sys.argv[1:]:
    with contextlib.suppress(Exception):
        importlib.import_module(name)
"""
_VERSION_CHECK = "import pip, sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))"


class InstallationFailed(Exception):
    """The environment could not be created; the message is one line that says what to do."""


def main(requirements: str) -> int:
    """Install the given lock file into `.venv`, one process at a time; return the exit status."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        _lock_folder(folder)
        if not is_current(ROOT, requirements):
            install(ROOT, requirements)
    except InstallationFailed as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error}: make {ROOT} writable, or copy it elsewhere.", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the next start repeats the installation.", file=sys.stderr)
        return 130
    finally:
        os.close(folder)
    return 0


def is_current(root: Path, requirements: str) -> bool:
    """Return whether `.venv` already matches this lock file, by the test that bootstrap.sh uses."""
    venv = root / ".venv"
    try:
        stamp = (venv / f"installed-{requirements}").read_text()
    except OSError:
        return False
    return (
        os.access(venv / "bin" / "python", os.X_OK)
        and not (venv / "unfinished").exists()
        and stamp == _stamp(root, requirements)
    )


def install(root: Path, requirements: str) -> None:
    """Create `.venv` if it is missing or broken, and install the packages of the lock file.

    Raises: InstallationFailed.
    """
    venv = root / ".venv"
    partial = time.monotonic()
    if not _is_usable(venv, root):
        _print_status(f"Creating .venv with Python {platform.python_version()} ({sys.executable}) ...")
        shutil.rmtree(venv, ignore_errors=True)
        venv.mkdir(exist_ok=True)
        (venv / "unfinished").touch()
        _run([sys.executable, "-m", "venv", str(venv)], "Python could not create .venv: see above.")
    unfinished = venv / "unfinished"
    unfinished.touch()
    _print_status(f"Installing {requirements} into .venv (the first time takes a while) ...")
    _install_packages(root, requirements)
    _compile(root)
    # The development lock holds every pin of the runtime lock (a test checks this), so it satisfies both.
    lock = {requirements, RUNTIME_LOCK} if requirements == DEVELOPMENT_LOCK else {requirements}
    for name in lock:
        (venv / f"installed-{name}").write_text(_stamp(root, name))
    unfinished.unlink()
    _print_status(f"Installed in {time.monotonic() - partial:.0f} s.")


def _install_packages(root: Path, requirements: str) -> None:
    python = str(root / ".venv" / "bin" / "python")
    lock = str(root / requirements)
    uv = _find_uv(root, python)
    if uv is not None:
        command = [uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", lock]
        # Use the system's certificates, like pip: a company's proxy may have its own.
        trusting = {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1", **os.environ}
        if subprocess.run(command, cwd=root, check=False, env=trusting).returncode == 0:
            return
        _print_status("uv could not install them; trying pip (this takes up to a minute) ...")
    _run(
        [*_pip(python), "--require-hashes", "-r", lock],
        "The packages could not be installed: see above. The package index must be reachable once; "
        "behind a mirror set PIP_INDEX_URL.",
    )


def _compile(root: Path) -> None:
    """Compile the service and what it imports, even if PYTHONDONTWRITEBYTECODE is set: else each start would do it.

    What cannot be written is compiled when it is imported, and what cannot be loaded fails when it is run.
    """
    python = str(root / ".venv" / "bin" / "python")
    writing = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    own_code = [name for name in _OWN_CODE if (root / name).exists()]
    # Loading selects the modules of the packages: all of them would take a minute.
    for command in (["-m", "compileall", "-q", *own_code], ["-c", _LOAD, *_LOADED_MODULES]):
        subprocess.run([python, *command], cwd=root, env=writing, capture_output=True, check=False)


def _find_uv(root: Path, python: str) -> str | None:
    """Return the path of uv, downloading it if necessary; None if pip has to install the packages."""
    found = shutil.which("uv", path=f"{root / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    if found is not None:
        return found
    # uv does not read pip's settings, so pip is used if a mirror is configured.
    settings = subprocess.run([python, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False)
    if re.search(r"(\.|')index-url=|no-index=", settings.stdout):
        return None
    downloaded = subprocess.run(
        [*_pip(python), "--require-hashes", "-r", str(root / "launcher" / "uv.txt")], cwd=root, check=False
    )
    return str(root / ".venv" / "bin" / "uv") if downloaded.returncode == 0 else None


def _pip(python: str) -> list[str]:
    return [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--root-user-action=ignore",
        "--no-input",
    ]


def _is_usable(venv: Path, root: Path) -> bool:
    python = venv / "bin" / "python"
    if (venv / "unfinished").exists() or not os.access(python, os.X_OK):
        return False
    try:
        # The scripts of a copied .venv still name the interpreter in its former folder.
        first_line = (venv / "bin" / "pip").open(errors="replace").readline()
    except OSError:
        return False
    if str(root) not in first_line and not first_line.startswith("#!/bin/sh"):
        return False
    return subprocess.run([python, "-c", _VERSION_CHECK], capture_output=True, check=False).returncode == 0


def _lock_folder(folder: int) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _print_status("Another ./run or ./test is preparing .venv; waiting for it ...")
        fcntl.flock(folder, fcntl.LOCK_EX)


def _stamp(root: Path, requirements: str) -> str:
    with (root / requirements).open("rb") as lock:
        # The POSIX tool, because bootstrap.sh computes the same stamp without Python.
        cksum = subprocess.run(["cksum"], stdin=lock, capture_output=True, text=True, check=True)  # noqa: S607
    return f"{cksum.stdout.strip()}\n{root}\n"


def _run(command: list[str], failure: str) -> None:
    if subprocess.run(command, cwd=ROOT, check=False).returncode != 0:
        raise InstallationFailed(failure)


def _print_status(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2] or [DEVELOPMENT_LOCK]))
