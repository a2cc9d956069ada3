"""Observation of statements: only state machines write a status column; which tests write authenticated rows."""

from __future__ import annotations

import functools
import re
import sys
from pathlib import Path

from app import authenticated

_ROOT = Path(__file__).resolve().parents[2]
_OURS = (f"{_ROOT}/app/", f"{_ROOT}/tests/", f"{_ROOT}/migrations/")
_WRITER = f"{_ROOT}/app/db/state_machine.py"
_SET = re.compile(r"UPDATE \w+ SET (?P<set>.*?)(?: WHERE |$)", re.DOTALL | re.IGNORECASE)
_STATUS = re.compile(r"\b(?:status|state|stage)\s*=", re.IGNORECASE)


_WRITES = re.compile(r"(?:UPDATE|INSERT INTO) (?P<table>\w+)", re.IGNORECASE)
by_tests: set[str] = set()
"""The authenticated tables that the present test has written itself, without a MAC perhaps."""


def expect_unverifiable_rows() -> None:
    """State that applications of the present test have other keys, or another network, than its rows."""
    by_tests.update(_authenticated())


def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
    """Note a write of a test to an authenticated table."""
    found = _WRITES.match(statement)
    if found is None or found["table"] not in _authenticated():
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame.f_code.co_filename.startswith(_OURS[1]):
        by_tests.add(found["table"])


@functools.cache
def _authenticated() -> set[str]:
    return {seal.table.name for seal in authenticated.seals()}


def reject(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
    """Fail if a module of the application other than the state machine writes a status. Tests may write anything."""
    found = _SET.match(statement)
    if found is None or not _STATUS.search(found["set"]):
        return
    frame = sys._getframe(1)
    while frame.f_back is not None and not frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    name = frame.f_code.co_filename
    assert name == _WRITER or not name.startswith(_OURS[0]), f"{name}:{frame.f_lineno} writes a status: {statement}"
