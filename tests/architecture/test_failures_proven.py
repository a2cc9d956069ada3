"""`docs/failures.md` promises nothing that no test proves."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_proof_that_is_named_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/failures.md").read_text()))
    written: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        written |= set(re.findall(r"def (test_\w+)", path.read_text()))
    for path in (ROOT / "tests").rglob("*_contract.py"):
        written |= set(re.findall(r"def (test_\w+)", path.read_text()))
    assert named, "the document names no proof"
    assert not named - written
