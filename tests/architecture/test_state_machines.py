"""State machines: one for each status column, its only writer, with documented transitions."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from app.db.state_machine import StateMachine
from app.extensions import db

ROOT = Path(__file__).resolve().parents[2]
WRITER = "app/db/state_machine.py"
# One transition of holds: `tests/unit/test_grouped_steps.py` compares its rows with those of the state machine.
STATEMENTS_OF_STEPS = {"app/usage/step_statements.py"}
COLUMNS = {"status", "state", "stage"}
# Calls that write the columns that they are given by name.
STATEMENTS = {"values", "update", "update_rows", "execute", "bulk_insert_mappings", "bulk_update_mappings"}
SETTERS = {"setattr", "__setattr__", "set_attribute", "set_committed_value"}
# Variable names of attributes, and why they are never a status column.
SETS_ATTRIBUTES = {
    "app/wallets/deposits/scanner.py": "columns of DepositScanState",
    "app/credits/retention.py": "sums in memory",
}
SQL = re.compile(rf"\bset\s+({'|'.join(COLUMNS)})\b", re.IGNORECASE)


def machines() -> dict[str, StateMachine[Any]]:
    """Return the state machines of the application by table and column."""
    found = {}
    for name, module in sorted(sys.modules.items()):
        for value in vars(module).values() if name.startswith("app.") else ():
            if isinstance(value, StateMachine):
                found[f"{value.column.parent.local_table.name}.{value.column.key}"] = value
    return found


def states_of(machine: StateMachine[Any]) -> type[StrEnum]:
    return type(next(iter(machine.initial_states)))


def _name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_column(node: ast.expr | None) -> bool:
    name = node.value if isinstance(node, ast.Constant) else getattr(node, "attr", None)
    return name in COLUMNS


def _targets(node: ast.AST) -> Iterator[ast.expr]:
    """Return what a statement assigns to, of a tuple its elements."""
    found = node.targets if isinstance(node, ast.Assign) else []
    found += [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign | ast.For) else []
    for target in found:
        yield from target.elts if isinstance(target, ast.Tuple | ast.List) else [target]


def _keys_given(call: ast.Call, tree: ast.Module) -> Iterator[ast.expr | None]:
    """Return the keys of the literal dicts that a call gets, also by a variable of its function."""
    given = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg is None)]
    names = {node.id for value in given for node in ast.walk(value) if isinstance(node, ast.Name)}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and function.lineno <= call.lineno <= (function.end_lineno or 0):
            given += [
                node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None
                if names & {_name_of(target) for target in _targets(node)}
            ]
    for value in given:
        for node in ast.walk(value):
            yield from node.keys if isinstance(node, ast.Dict) else ()


def writes(source: str, name: str, models: set[str]) -> Iterator[str]:
    """Return the places of a module that write a status column."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        place = f"{name}:{getattr(node, 'lineno', 0)}"
        assigned = [target for target in _targets(node) if isinstance(target, ast.Attribute)]
        if any(_is_column(target) and ast.unparse(target) != "app.state" for target in assigned):
            yield f"{place} assigns a status"
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.search(node.value):
            yield f"{place} is SQL that sets a status"
        if not isinstance(node, ast.Call):
            continue
        called = _name_of(node.func)
        if called in SETTERS and len(node.args) > 1:
            is_literal = isinstance(node.args[1], ast.Constant)
            if _is_column(node.args[1]) or (not is_literal and name not in SETS_ATTRIBUTES):
                yield f"{place} sets an attribute by name"
        if called in STATEMENTS | models and (
            any(keyword.arg in COLUMNS for keyword in node.keywords) or any(map(_is_column, _keys_given(node, tree)))
        ):
            yield f"{place} writes a status by {called}()"


@pytest.fixture(scope="module", autouse=True)
def _whole_application() -> None:
    import app.factory  # noqa: F401, PLC0415 - imports every module with a table


def guarded_models() -> set[str]:
    return {machine.column.parent.class_.__name__ for machine in machines().values()}


def test_every_status_column_has_a_state_machine() -> None:
    columns = {
        f"{table.name}.{column.name}"
        for table in db.metadata.tables.values()
        for column in table.columns
        # Rows of events are never changed.
        if column.name in COLUMNS and not table.name.endswith("_events")
    }
    assert set(machines()) == columns


def test_only_state_machines_write_a_status() -> None:
    files = [
        path
        for folder in ("app", "server", "workers", "shopper", "signer")
        for path in sorted((ROOT / folder).rglob("*.py"))
    ]
    found = set()
    models = guarded_models()
    for path in files:
        name = path.relative_to(ROOT).as_posix()
        if name not in {WRITER, *STATEMENTS_OF_STEPS}:
            found |= set(writes(path.read_text(), name, models))
    assert found == set()


@pytest.mark.parametrize(
    "line",
    [
        "payment.status = 'paid'", "bridge.stage, bridge.steps = 'failed', 0", "purchase.status += 'x'",
        "setattr(payment, 'status', 'paid')", "setattr(payment, name, 'paid')",
        "object.__setattr__(payment, 'status', 'paid')",
        "update(Payment).values(status='paid')", "update(Payment).values({'status': 'paid'})",
        "update(Payment).values({Payment.status: 'paid'})", "update(Payment).values(**{'status': 'paid'})",
        "update(table).values({table.c.state: bindparam('after')})", "update_rows(session, Payment, status='paid')",
        "changes = {'status': 'paid'}; update_rows(session, Payment, **changes)",
        "changes = {'status': 'paid'}; update(Payment).values(**changes)",
        "changes |= {'tries': 1, 'status': 'paid'}; update(Payment).values({**changes})",
        "session.query(Payment).update({'status': 'paid'})",
        "Payment(status='paid')", "tables.Bridge(stage='source')", "Payment(**{'status': 'paid'})",
        "text('UPDATE payments SET status = 1')",
    ],
)  # fmt: skip
def test_the_check_finds_each_way_to_write_a_status(line: str) -> None:
    assert list(writes(f"def f():\n    {line}\n", "x.py", guarded_models()))


def test_every_state_is_reachable_and_every_row_begins_somewhere() -> None:
    for name, machine in machines().items():
        initial, permitted = machine.initial_states, machine.permitted
        reached = set(initial)
        while more := {state for source in reached for state in permitted.get(source, ())} - reached:
            reached |= more
        assert reached == set(states_of(machine)), name
        assert all(source not in targets for source, targets in permitted.items()), name


def test_the_documentation_has_the_transitions_of_every_machine() -> None:
    """`docs/architecture.md` has this table."""
    rows = []
    for name, machine in sorted(machines().items()):
        order = list(states_of(machine))
        moves = [
            f"{source.value} → {', '.join(target.value for target in order if target in targets)}"
            for source in order
            if (targets := machine.permitted.get(source))
        ]
        begins = ", ".join(state.value for state in order if state in machine.initial_states)
        rows.append(f"| `{name}` | {begins} | {'; '.join(moves)} |")
    table = "\n".join(rows)
    assert table in (ROOT / "docs" / "architecture.md").read_text(), f"\n{table}"
