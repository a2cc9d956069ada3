"""Units for reading refuse statements that write or lock rows: under AUTOCOMMIT a write would be final."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import sqlalchemy as sa
from flask import Flask
from sqlalchemy import Insert, text
from sqlalchemy.orm import Session

from app.core import clock
from app.db.leases import Heartbeat
from app.db.lock_order import lock_rows
from app.db.tables import table_of
from app.db.unit_of_work import UnitError, read_only_unit, snapshot, unit_of_work

Unit = Callable[[], AbstractContextManager[Session]]


def insert(name: str) -> Insert:
    return sa.insert(table_of(Heartbeat)).values(name=name, at=clock.now())


def flush_a_new_row(session: Session) -> None:
    session.add(Heartbeat(name="lost", at=clock.now()))
    session.flush()


WRITES: dict[str, Callable[[Session], object]] = {
    "flush": flush_a_new_row,
    "statement": lambda session: session.execute(insert("lost")),
    "text": lambda session: session.execute(text("DELETE FROM heartbeats")),
    "raw connection": lambda session: session.connection().execute(insert("lost")),
    "raw text": lambda session: session.connection().exec_driver_sql("DELETE FROM heartbeats"),
    "common table expression": lambda session: session.execute(
        text("WITH gone AS (DELETE FROM heartbeats RETURNING name) SELECT name FROM gone")
    ),
    "bulk": lambda session: session.bulk_insert_mappings(sa.inspect(Heartbeat), [{"name": "lost", "at": clock.now()}]),
}


@pytest.mark.parametrize("kind", [read_only_unit, snapshot])
def test_a_read_only_unit_refuses_every_write(
    each_database_url: str, build_app: Callable[..., Flask], kind: Unit
) -> None:
    with build_app(each_database_url).app_context():
        with unit_of_work() as session:
            session.execute(insert("kept"))
        for write in WRITES.values():
            with kind() as session, pytest.raises(UnitError, match="neither writes nor locks"):
                write(session)
        with read_only_unit() as session:
            assert session.scalars(sa.select(Heartbeat.name)).all() == ["kept"]


def test_a_read_only_unit_refuses_row_locks_which_would_end_with_their_statement(
    postgres_url: str, build_app: Callable[..., Flask]
) -> None:
    rows = sa.select(Heartbeat)
    locking = (
        rows.with_for_update(),
        rows.with_for_update(read=True),
        rows.with_for_update(key_share=True),
        rows.with_for_update(read=True, key_share=True),
        rows.with_for_update(skip_locked=True),
    )
    with build_app(postgres_url).app_context():
        for query in locking:
            with read_only_unit() as session, pytest.raises(UnitError, match="neither writes nor locks"):
                session.scalars(query)
        with read_only_unit() as session, pytest.raises(UnitError, match="neither writes nor locks"):
            session.get(Heartbeat, "none", with_for_update=True)
        with unit_of_work() as session:
            assert session.scalars(locking[0]).all() == []


def test_a_read_only_unit_refuses_to_lock_rows_in_order(
    each_database_url: str, build_app: Callable[..., Flask]
) -> None:
    with (
        build_app(each_database_url).app_context(),
        read_only_unit() as session,
        pytest.raises(UnitError, match="neither writes nor locks"),
    ):
        lock_rows(session, Heartbeat.name)
