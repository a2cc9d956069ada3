"""Contracts of our own that stand in for those whose makers publish no code that may be fetched.

The sources are beside this file; `compiled.json` is what Vyper 0.4.3 makes of them (`--evm-version cancun`), so that
no compiler is needed to run. A test compares the sources with those that were compiled.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent
COMPILED = FOLDER / "compiled.json"


@cache
def creation_code(name: str) -> str:
    """Return a contract's creation code, hex without 0x."""
    compiled: dict[str, dict[str, str]] = json.loads(COMPILED.read_text())
    return compiled[name]["creation_code"]
