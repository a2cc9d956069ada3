"""Every writer of an authenticated column keeps the row's MAC."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from app import authenticated
from app.factory import create_app  # noqa: F401 - registers every model

ROOT = Path(__file__).resolve().parents[2]
MODELS = {seal.model.__name__: seal.model for seal in authenticated.seals()}
_MECHANISM = {"app/authenticated.py", "app/db/state_machine.py"}
# `changing` is around them, or the statement sets the MAC itself.
_REVIEWED = {
    ("app/spending/accounts.py", "SpendingAccount"): "the sums, with `new_mac`; the lock; `lock_version`",
    ("app/spending/controls.py", "SpendingControls"): "stamped; a page of rows that are stamped",
    ("app/spending/controls.py", "SpendingAccount"): "`align_versions`, after which every row is sealed anew",
    ("app/catalog/statistics.py", "Service"): "totals by stripes",
    ("app/identity/api_keys.py", "ApiKey"): "inside `changing`: it returns ids",
}


def writers(path: str, text: str) -> list[tuple[str, str, int]]:
    """Return the statements of a module that write authenticated columns: file, model, line."""
    found = []
    for call in ast.walk(ast.parse(text)):
        if not isinstance(call, ast.Call):
            continue
        by_helper = isinstance(call.func, ast.Name) and call.func.id == "update_rows"
        if not by_helper and not (isinstance(call.func, ast.Attribute) and call.func.attr == "values"):
            continue
        names = {node.id for node in ast.walk(call if by_helper else call.func) if isinstance(node, ast.Name)}
        if not names & {"update", "insert", "insert_into", "update_rows"}:
            continue
        stamped = any(
            isinstance(node, ast.Attribute) and node.attr == "stamp" for each in call.args for node in ast.walk(each)
        )
        for name in names & MODELS.keys():
            columns = {keyword.arg for keyword in call.keywords}
            for each in () if by_helper else call.args:
                keys = each.keys if isinstance(each, ast.Dict) else [None]
                columns |= {key.attr if isinstance(key, ast.Attribute) else None for key in keys}
            is_harmless = None not in columns and columns <= MODELS[name].not_authenticated
            if not stamped and not is_harmless:
                found.append((path, name, call.lineno))
    return found


def test_every_writer_of_an_authenticated_column_keeps_the_mac() -> None:
    found = [
        each
        for path in sorted((ROOT / "app").rglob("*.py"))
        for each in writers(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert [each for each in found if each[0] not in _MECHANISM and each[:2] not in _REVIEWED] == []


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("update(Agent).where(Agent.id == id).values(frozen_at=None)", True),
        ("update(Agent).values({'frozen_at': None})", True),
        ("insert_into(session, Passkey).values(id=id)", True),
        ("insert_into(session, Passkey).values(Passkey.stamp({'id': id}))", False),
        ("update(Agent).where(Agent.id == id).values(name=Agent.name)", False),
        ("update(Approval).values(lease_until=now)", False),
        ("update_rows(session, Agent, Agent.id == id, frozen_at=None)", True),
        ("update_rows(session, Agent, Agent.id == id, **values)", True),
        ("update_rows(session, Approval, Approval.id == id, lease_until=now)", False),
    ],
)
def test_a_writer_without_a_mac_is_found(statement: str, *, is_found: bool) -> None:
    assert bool(writers("x.py", statement)) is is_found


def test_each_column_without_power_exists() -> None:
    for model in MODELS.values():
        assert model.not_authenticated <= {column.key for column in model.__table__.columns}, model
