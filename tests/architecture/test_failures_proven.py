"""`docs/failures.md` promises nothing that no test proves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NEVER_RUN = {"skip", "skipif", "xfail"}


def test_every_row_names_proofs_that_run() -> None:
    """A proof is named by the beginning of its name, which no other test has."""
    rows = re.findall(r"^\| (?!Fault |---).* \| (.+) \|$", (ROOT / "docs/failures.md").read_text(), re.MULTILINE)
    named = [re.findall(r"`(\w+)`", row) for row in rows]
    assert named, "the document names no proof"
    assert all(named)
    tests = {name.removeprefix("test_") for name in _collected()}
    begun = {start: [name for name in tests if name.startswith(start)] for starts in named for start in starts}
    assert {start: names for start, names in begun.items() if len(names) != 1 and start not in tests} == {}


def _collected() -> Iterator[str]:
    """Yield what pytest finds: functions of modules, and those of a contract that some module takes all of."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        module = ast.parse(path.read_text())
        yield from running_tests_of(module)
        for node in module.body:
            if isinstance(node, ast.ImportFrom) and node.module and any(each.name == "*" for each in node.names):
                contract = ROOT / Path(*node.module.split(".")).with_suffix(".py")
                yield from running_tests_of(ast.parse(contract.read_text()))


def running_tests_of(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            marks = {
                each.attr for mark in node.decorator_list for each in ast.walk(mark) if isinstance(each, ast.Attribute)
            }
            if not marks & _NEVER_RUN and any(not _says_nothing(each) for each in node.body):
                yield node.name


def _says_nothing(statement: ast.stmt) -> bool:
    """Return whether it is a docstring or `pass`."""
    return isinstance(statement, ast.Pass) or (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    )
