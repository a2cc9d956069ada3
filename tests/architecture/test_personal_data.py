"""The list of personal data: it has every column of every table, and the page shows it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import app.factory  # noqa: F401 - all models
from app.agents.claims import REPLAY_WINDOW
from app.audit_log.trail import AuditAction
from app.db.lock_order import RANKS
from app.device.guess_limits import MAX_LOCK, STRIKES_EXPIRE_AFTER
from app.events import feed
from app.events.outbox import EventType
from app.extensions import db
from app.idempotency.service import RETENTION
from app.platform.personal_data import TABLES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations" / "personal-data.md"
BEGIN, END = "<!-- of personal_data.toml -->\n", "<!-- end -->\n"
LISTS = ("personal", "withheld", "other")


def columns_of(entry: dict[str, Any]) -> list[str]:
    return [*entry.get("erased", {}), *(name for each in LISTS for name in entry.get(each, "").split())]


def test_every_column_of_every_table_is_listed_once() -> None:
    listed = {name: sorted(columns_of(dict(entry))) for name, entry in TABLES.items()}
    assert listed == {name: sorted(each.name for each in table.columns) for name, table in db.metadata.tables.items()}


def test_personal_data_has_a_reason_and_an_end_and_belongs_to_somebody() -> None:
    for name, entry in TABLES.items():
        is_personal = {"erased", "deleted", "personal", "of"} & set(entry)
        assert not is_personal or {"why", "kept"} <= set(entry), name
        if {"erased", "deleted", "finished"} & set(entry):
            assert "of" in entry, name
        for column, parent in entry.get("of", {}).items():
            assert column in db.metadata.tables[name].columns, name
            parents = set(parent.split()) - {"self"}
            assert [each for each in parents if "id" not in db.metadata.tables[each].columns] == [], name


def test_what_ends_is_stated_on_the_page_and_kept_as_long_as_it_is_used() -> None:
    for name, entry in TABLES.items():
        for column, days in entry.get("ends", {}).items():
            assert column in db.metadata.tables[name].columns, name
            assert days in (0, 1, 2, 30, "RETENTION_DAYS"), name
            words = {0: "expire", 1: "24 hours", 2: "2 days", 30: "30 days"}.get(days, days)
            assert "kept" not in entry or name == "purchases" or words in entry["kept"], name
        assert set(entry.get("cleared", "").split()) <= set(columns_of(dict(entry))), name
    assert TABLES["events"]["ends"] == {"created_at": feed.RETENTION.days}
    assert TABLES["idempotency_keys"]["ends"] == {"created_at": RETENTION.days}
    assert TABLES["claim_codes"]["ends"] == {"claimed_at": REPLAY_WINDOW.days}
    assert TABLES["guess_counters"]["ends"] == {"window_start": (MAX_LOCK + STRIKES_EXPIRE_AFTER).days}


def test_nothing_that_is_sealed_or_a_digest_is_exported() -> None:
    for name, entry in TABLES.items():
        shown = [*entry.get("personal", "").split(), *entry.get("other", "").split()]
        if "of" in entry:
            secret = [each for each in shown if each.endswith(("sealed", "digest", "hmac", "mac", "raw"))]
            assert secret == [], name


def test_rows_are_locked_in_the_order_of_all_units() -> None:
    ranks = [RANKS[name] for name, entry in TABLES.items() if name in RANKS and {"erased", "deleted"} & set(entry)]
    assert ranks == sorted(ranks)


def test_the_values_in_rules_exist() -> None:
    assert set(TABLES["audit_entries"]["actions"]) <= set(AuditAction)
    assert set(TABLES["events"]["only"]["type"]) <= set(EventType)


def shown() -> str:
    lines = ["| Table | Personal | Why | How long | An erasure |\n", "|---|---|---|---|---|\n"]
    for name, entry in TABLES.items():
        if "why" in entry:
            personal = [*entry.get("erased", {}), *entry.get("personal", "").split()]
            act = "deletes" if "deleted" in entry else "clears" if "erased" in entry else "–"
            cells = f"`{name}`", ", ".join(personal) or "–", entry["why"], entry["kept"], act
            lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


def test_the_page_shows_the_list() -> None:
    text = PAGE.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    renewed = before + BEGIN + shown() + END + after
    if os.environ.get("UPDATE_DOCS"):
        PAGE.write_text(renewed, "utf-8")
    elif text != renewed:
        pytest.fail("Run UPDATE_DOCS=1 pytest tests/architecture/test_personal_data.py")
