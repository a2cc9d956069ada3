"""Parser of the Procfile, which defines how each process is started, here and on a host."""

from __future__ import annotations

import shlex
from pathlib import Path


def read_procfile(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the command of each process type.

    Raises: ValueError naming the line that is not `name: command`.
    """
    commands = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, command = line.partition(":")
        if not colon or not command.strip():
            raise ValueError(f"{path.name}: not a process line: {line!r}")
        commands[name.strip()] = tuple(shlex.split(command))
    return commands
