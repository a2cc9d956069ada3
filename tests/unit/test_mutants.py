"""The mutation run: a mutant changes the functions that exist, and nothing else is a mutant."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks.mutants import mutants_of, record_lines

SOURCE = '''
def allowed(amount, limit):
    """Return 1."""
    _log.info("allowed %s", 2)
    if limit is None:
        return True
    return amount <= limit
'''


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    (tmp_path / "limits.py").write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("limits", tmp_path / "limits.py")
    assert spec
    assert spec.loader
    made = importlib.util.module_from_spec(spec)
    vars(made)["_log"] = __import__("logging").getLogger(__name__)
    spec.loader.exec_module(made)
    return made


def test_conditions_boundaries_and_returned_values_change_and_texts_do_not(tmp_path: Path, module: ModuleType) -> None:
    allowed = module.allowed
    effects = {}
    for mutant in mutants_of(tmp_path, "limits.py"):
        assert mutant.install(tmp_path)
        effects[mutant.change] = [allowed(1, None), allowed(1, 1), allowed(1, 2)] if "is" not in mutant.change else []
    assert effects == {
        "`limit is None` → `limit is not None`": [],
        "`True` → `False`": [False, True, True],
        "`return amount <= limit` → `return None`": [True, None, None],
        "`amount <= limit` → `amount < limit`": [True, False, True],
        "`amount <= limit` → `amount > limit`": [True, False, False],
    }


def test_a_line_is_recorded_when_a_function_reaches_it(tmp_path: Path, module: ModuleType) -> None:
    covered: set[tuple[str, int]] = set()
    record_lines(tmp_path, "limits.py", covered, vars(module))
    assert module.allowed(1, None)
    assert {("limits.py", 5), ("limits.py", 6)} <= covered
    assert ("limits.py", 7) not in covered
