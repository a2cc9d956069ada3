"""Observation of UPDATE statements: only state machines write a status column."""

from __future__ import annotations

import re
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_OURS = (f"{_ROOT}/app/", f"{_ROOT}/tests/", f"{_ROOT}/migrations/")
_WRITER = f"{_ROOT}/app/db/state_machine.py"
_SET = re.compile(r"UPDATE \w+ SET (?P<set>.*?)(?: WHERE |$)", re.DOTALL | re.IGNORECASE)
_STATUS = re.compile(r"\b(?:status|state|stage)\s*=", re.IGNORECASE)


def reject(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
    """Fail if a module of the application other than the state machine writes a status. Tests may write anything."""
    found = _SET.match(statement)
    if found is None or not _STATUS.search(found["set"]):
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    name = frame.f_code.co_filename
    assert name == _WRITER or not name.startswith(_OURS[0]), (
        f"{name}:{frame.f_lineno} writes a status: {statement}"
    )
