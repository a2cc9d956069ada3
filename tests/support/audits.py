"""The audits of the database of a test. An audit that read only empty tables is not repeated while they are empty."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from flask import Flask
from sqlalchemy import Select, Table, TextClause, event, select, text
from sqlalchemy.orm import Session

from app import authenticated
from app.audit_log import verification
from app.catalog import statistics
from app.catalog.payouts import earnings
from app.credits import audit as credits_audit
from app.db.unit_of_work import snapshot
from app.extensions import db
from app.payments import jobs as payments_audit
from app.spending import audit as spending_audit
from app.usage import audit as usage_audit
from app.wallets.maintenance import audit as wallets_audit
from tests.support import status_writes

Check = Callable[[Session], Sequence[str]]
_CHECKS: tuple[Check, ...] = (
    credits_audit.check,
    spending_audit.check,
    usage_audit.check,
    verification.find_problems,
    statistics.find_wrong_sums,
    earnings.find_problems,
    payments_audit.check,
    wallets_audit.check,
)
_ROWS = {
    "grants of top-ups": (
        "SELECT 1 FROM credit_postings WHERE reference LIKE 'grant:topup:%' OR reference LIKE 'revoke:topup:%'"
    ),
    "acts of payouts": (
        "SELECT 1 FROM audit_entries WHERE action IN"
        " ('service.paid', 'service.written_off', 'service.call_refunded', 'payment.refunded')"
    ),
    "refunds of calls": (
        "SELECT 1 FROM credit_postings WHERE reference LIKE 'grant:refund:%' OR reference LIKE 'revoke:refund:%'"
    ),
}
"""Rows of tables that have other rows after almost every test."""
_SUBJECTS: dict[Check, frozenset[str]] = {
    earnings.find_problems: frozenset(
        {"service_payouts", "payments", "transactions", "acts of payouts", "refunds of calls"}
    ),
    payments_audit.check: frozenset({"payments", "topups", "grants of top-ups"}),
}
"""Without any of these rows a check compares nothing with nothing, which takes as long as all other checks together."""
_WORD = re.compile(r"\w+")
passed: dict[Check, frozenset[str]] = {}
"""The tables of each check that found nothing while all of them were empty: they determine what it does."""


def audit(app: Flask, checks: Sequence[Check] = _CHECKS) -> None:
    """Check the money invariants of an application's database."""
    with app.app_context(), snapshot() as session, _tables_read() as read:
        filled = frozenset(session.scalars(_filled_tables()))
        for check in checks:
            if check in passed and passed[check].isdisjoint(filled):
                continue
            if check in _SUBJECTS and _SUBJECTS[check].isdisjoint(filled):
                continue
            read.clear()
            problems = check(session)
            assert problems == [], problems
            if read and read.isdisjoint(filled):
                passed[check] = frozenset(read)
        for seal in authenticated.seals():
            if seal.table.name in filled and seal.table.name not in status_writes.by_tests:
                rows = session.execute(_all_rows(seal.table, tuple(seal.all_columns)))
                changed = [row for row in rows if not seal.is_authentic(row, remembers=False)]
                assert changed == [], (seal.table.name, changed)


@contextmanager
def _tables_read() -> Iterator[set[str]]:
    """Collect the tables that the statements of a block name."""
    read: set[str] = set()

    def note(_connection: object, _cursor: object, statement: str, *_rest: Any) -> None:
        read.update(_tables_in(statement))

    event.listen(db.engine, "before_cursor_execute", note)
    try:
        yield read
    finally:
        event.remove(db.engine, "before_cursor_execute", note)


@functools.cache
def _tables_in(statement: str) -> frozenset[str]:
    return frozenset(_WORD.findall(statement)) & set(db.metadata.tables)


@functools.cache
def _all_rows(table: Table, columns: tuple[Any, ...]) -> Select[Any]:
    return select(*columns).select_from(table)


@functools.cache
def _filled_tables() -> TextClause:
    rows = {name: f"SELECT 1 FROM {name}" for name in db.metadata.tables} | _ROWS  # noqa: S608 - ours
    found = (f"SELECT '{name}' WHERE EXISTS ({each})" for name, each in rows.items())
    return text(" UNION ALL ".join(found))
