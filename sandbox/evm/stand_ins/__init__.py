"""Stand-ins for contracts without published code.

The sources are in this folder; `compiled.json` is the output of Vyper 0.4.3 (`--evm-version cancun`), so that no
compiler is needed at run time. A test compares the sources with those that were compiled.
"""

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
