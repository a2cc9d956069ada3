"""`.env`: settings of this work tree as KEY=VALUE lines, below the environment."""

from __future__ import annotations

import re
from pathlib import Path

from launcher.errors import LauncherError

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*=\s*(.*)", re.ASCII)
_QUOTES = "\"'"


def read_dotenv(path: Path) -> dict[str, str]:
    """Return the settings of the file, none when it does not exist. Quotes around a value are removed.

    Raises: LauncherError naming a line that is neither a setting nor a comment (its content may be secret).
    """
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    settings = {}
    for number, raw in enumerate(lines, start=1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise LauncherError(f"{path.name} line {number} is not KEY=VALUE.", status=2)
        name, value = match.groups()
        if len(value) > 1 and value[0] in _QUOTES and value[-1] == value[0]:
            value = value[1:-1]
        else:
            value = re.sub(r"(^|\s)#.*", "", value).strip()
        settings[name] = value
    return settings
