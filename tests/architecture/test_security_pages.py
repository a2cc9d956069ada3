"""The pages about security name tests that run, files that exist, and every requirement of the standard once."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from app.config import Settings
from app.extensions import Model
from tests.architecture.test_failures_proven import running_tests_of

ROOT = Path(__file__).resolve().parents[2]
THREATS, ASVS = ROOT / "docs/security/who-can-do-what.md", ROOT / "docs/security/asvs.md"
PAGES = pytest.mark.parametrize("page", [THREATS, ASVS], ids=lambda page: page.stem)
STATES = {"met", "partly", "not met", "not applicable"}

# ASVS 5.0.0: how many requirements of levels 1 and 2 each section has; their numbers begin at 1 and have no gaps.
SECTIONS = {
    "1.1": 2, "1.2": 9, "1.3": 11, "1.4": 3, "1.5": 2, "2.1": 3, "2.2": 3, "2.3": 4, "2.4": 1, "3.2": 2, "3.3": 4,
    "3.4": 6, "3.5": 5, "3.7": 2, "4.1": 3, "4.2": 1, "4.3": 2, "4.4": 4, "5.1": 1, "5.2": 3, "5.3": 2, "5.4": 3,
    "6.1": 3, "6.2": 12, "6.3": 4, "6.4": 4, "6.5": 5, "6.6": 3, "6.8": 4, "7.1": 3, "7.2": 4, "7.3": 2, "7.4": 5,
    "7.5": 2, "7.6": 2, "8.1": 2, "8.2": 3, "8.3": 1, "8.4": 1, "9.1": 3, "9.2": 4, "10.1": 2, "10.2": 2, "10.3": 4,
    "10.4": 11, "10.5": 5, "10.6": 2, "10.7": 3, "11.1": 2, "11.2": 3, "11.3": 3, "11.4": 4, "11.5": 1, "11.6": 1,
    "12.1": 3, "12.2": 2, "12.3": 4, "13.1": 1, "13.2": 5, "13.3": 2, "13.4": 5, "14.1": 2, "14.2": 4, "14.3": 3,
    "15.1": 3, "15.2": 3, "15.3": 7, "16.1": 1, "16.2": 5, "16.3": 4, "16.4": 3, "16.5": 3, "17.1": 1, "17.2": 4,
    "17.3": 2,
}  # fmt: skip
# How many of them are of level 1; these are the first ones of their section.
FIRST_LEVEL = {
    "1.2": 5, "1.3": 2, "1.5": 1, "2.1": 1, "2.2": 2, "2.3": 1, "3.2": 2, "3.3": 1, "3.4": 2, "3.5": 3, "4.1": 1,
    "4.4": 1, "5.2": 2, "5.3": 2, "6.1": 1, "6.2": 8, "6.3": 2, "6.4": 2, "7.2": 4, "7.4": 2, "8.1": 1, "8.2": 2,
    "8.3": 1, "9.1": 3, "9.2": 1, "10.4": 5, "11.3": 2, "11.4": 1, "12.1": 1, "12.2": 2, "13.4": 1, "14.2": 1,
    "14.3": 1, "15.1": 1, "15.2": 1, "15.3": 1,
}  # fmt: skip


def rows_of(page: Path, first: str) -> list[list[str]]:
    """Return the cells of the rows below the header that begins with a word."""
    rows: list[list[str]] = []
    is_inside = False
    for line in page.read_text().splitlines():
        cells = [each.strip() for each in line.strip("|").split("|")] if line.startswith("|") else []
        is_inside = (is_inside and bool(cells)) or (bool(cells) and cells[0] == first)
        if is_inside and cells[0] != first and not cells[0].startswith("---"):
            rows.append(cells)
    return rows


@cache
def names_in(path: Path) -> frozenset[str]:
    return frozenset(running_tests_of(ast.parse(path.read_text()))) if path.is_file() else frozenset()


@PAGES
def test_every_test_that_a_security_page_names_exists_and_runs(page: Path) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text())
    assert len(named) > 50
    assert [f"{path}::{name}" for path, name in named if name not in names_in(ROOT / path)] == []


@PAGES
def test_every_file_and_setting_that_a_security_page_names_exists(page: Path) -> None:
    text = page.read_text()
    paths = re.findall(r"`([\w.-]+(?:/[\w.-]+)+|[\w-]+\.(?:md|py|yaml|txt))`", text)
    assert [path for path in paths if not (ROOT / path).exists()] == []
    documented = (ROOT / "docs/configuration.md").read_text()
    settings = set(re.findall(r"`([A-Z0-9]+(?:_[A-Z0-9]+)+)`", text))
    known = {name for name in settings if name.lower() in Settings.model_fields or f"`{name}`" in documented}
    assert settings - known == set()


def test_every_threat_has_an_answer_in_each_column_and_a_test() -> None:
    rows = rows_of(THREATS, "Who")
    assert len(rows) > 25
    assert [row[0] for row in rows if len(row) != 6 or not all(row) or "::" not in row[5]] == []


def test_every_requirement_of_levels_1_and_2_is_on_the_page_once() -> None:
    expected = [
        (f"{section}.{number}", "1" if number <= FIRST_LEVEL.get(section, 0) else "2")
        for section, count in SECTIONS.items()
        for number in range(1, count + 1)
    ]
    assert len(expected) == 253
    assert [(row[0], row[1]) for row in rows_of(ASVS, "Id")] == expected


def test_every_requirement_has_a_state_with_its_reason_or_test() -> None:
    rows = rows_of(ASVS, "Id")
    assert [row[0] for row in rows if len(row) != 6 or row[2] not in STATES or not row[3] or not row[4]] == []
    assert [row[0] for row in rows if row[2] == "met" and "::" not in row[5]] == []
    counted = {row[0]: int(row[2]) for row in rows_of(ASVS, "State")}
    assert counted == {state: sum(row[2] == state for row in rows) for state in STATES}


def test_every_event_and_entry_that_the_threats_name_is_written_or_monitored() -> None:
    named = set(re.findall(r"`([a-z]+\.[a-z_]+|[a-z]+_[a-z_]+)`", THREATS.read_text()))
    tables = {table.name for table in Model.metadata.sorted_tables}
    monitored = set(re.findall(r"`([a-z_]+)[`{]", (ROOT / "docs/operations/monitoring.md").read_text()))
    written = "".join(path.read_text() for folder in ("app", "workers") for path in (ROOT / folder).rglob("*.py"))
    assert "unexplained_outflow" in named
    assert {name for name in named - tables - monitored if f'"{name}"' not in written} == set()
