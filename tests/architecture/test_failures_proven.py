"""`docs/failures.md` promises nothing that no test proves."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_NEVER_RUN = {"skip", "skipif", "xfail"}


def test_every_proof_that_is_named_is_a_test_that_runs() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "docs/failures.md").read_text()))
    assert named, "the document names no proof"
    assert not named - set(_collected())


def _collected() -> Iterator[str]:
    """Yield what pytest finds: functions of modules, and those of a contract that some module takes all of."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        module = ast.parse(path.read_text())
        yield from _tests_of(module)
        for node in module.body:
            if isinstance(node, ast.ImportFrom) and node.module and any(each.name == "*" for each in node.names):
                contract = ROOT / Path(*node.module.split(".")).with_suffix(".py")
                yield from _tests_of(ast.parse(contract.read_text()))


def _tests_of(module: ast.Module) -> Iterator[str]:
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
