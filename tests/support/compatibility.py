"""The table of clients in `docs/compatibility.md`, written and checked by the tests of clients.

`UPDATE_COMPATIBILITY=1 ./test tests/clients` writes it; otherwise a row that differs is a failure.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from sandbox.cache import Cache, write_atomically

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "compatibility.md"
_COMMAND = "UPDATE_COMPATIBILITY=1 ./test tests/clients"
_ROW = re.compile(r"^\| `([^`]+)` \| (PyPI|npm) \| ([^ ]+) \| .+ \|$", re.MULTILINE)


def check(registry: str, package: str, version: str, examples: Sequence[str]) -> None:
    """Check that the table has the row of a package with passing examples, or write it."""
    row = f"| `{package}` | {registry} | {version} | {', '.join(examples)} | {len(examples)} of {len(examples)} |"
    if os.environ.get("UPDATE_COMPATIBILITY"):
        with Cache().locked("compatibility"):
            _write(row)
    assert row in DOCUMENT.read_text().splitlines(), f"docs/compatibility.md is out of date: {_COMMAND}\n{row}"


def packages() -> list[tuple[str, str, str]]:
    """Return the name, registry and version in each row."""
    return _ROW.findall(DOCUMENT.read_text())


def _write(row: str) -> None:
    text = DOCUMENT.read_text()
    matches = list(_ROW.finditer(text))
    key = row.split(" | ")[:2]
    rows = [match[0] for match in matches if match[0].split(" | ")[:2] != key]
    rows = sorted([*rows, row], key=lambda each: [part.lower() for part in reversed(each.split(" | ")[:2])])
    start, end = matches[0].start(), matches[-1].end()
    write_atomically(DOCUMENT, (text[:start] + "\n".join(rows) + text[end:]).encode())
