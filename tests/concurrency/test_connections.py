"""Database connections: dead ones reach no request, and reading units keep nothing on PostgreSQL either."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from flask import Flask
from psycopg.pq import TransactionStatus
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.orm import Session

from app.core import clock, connections
from app.core.heartbeats import Heartbeat
from app.core.tables import table_of
from app.core.unit_of_work import UnitError, reading, snapshot, unit_of_work
from app.extensions import db


# The database is named first, so that it outlives the application, which is audited at its end.
@pytest.fixture
def on_postgres(postgres_url: str, build_app: Callable[..., Flask]) -> Iterator[Flask]:
    app = build_app(postgres_url)
    with app.app_context():
        yield app


@pytest.fixture
def outsider(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that the application knows nothing of."""
    url = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def cut_all_but(outsider: psycopg.Connection[Any]) -> int:
    cut = outsider.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return len(cut.fetchall())


def beats(outsider: psycopg.Connection[Any]) -> int:
    row = outsider.execute("SELECT count(*) FROM heartbeats").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize("unit", [unit_of_work, reading])
def test_a_connection_that_the_server_cut_a_moment_ago_fails_no_unit(
    unit: Any, outsider: psycopg.Connection[Any]
) -> None:
    with unit() as session:
        session.execute(text("SELECT 1"))
    assert cut_all_but(outsider) == 1
    with unit() as session:
        assert session.scalar(text("SELECT 1")) == 1


def rested(url: str) -> tuple[psycopg.Connection[Any], Any]:
    connection = psycopg.connect(
        make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    )
    return connection, SimpleNamespace(info={"resting_since": time.monotonic() - 3600})


def test_a_connection_that_rested_for_long_is_asked_and_left_as_it_was(postgres_url: str) -> None:
    connection, entry = rested(postgres_url)
    with connection:
        connections._refuse_dead(connection, entry, None)
        assert connection.info.transaction_status is TransactionStatus.IDLE
        assert connection.autocommit is False


def test_a_connection_that_died_while_it_rested_is_refused(
    postgres_url: str, outsider: psycopg.Connection[Any]
) -> None:
    connection, entry = rested(postgres_url)
    assert cut_all_but(outsider) == 1
    with pytest.raises(DisconnectionError):
        connections._refuse_dead(connection, entry, None)
    connection.close()


def add_a_beat(session: Session) -> None:
    session.add(Heartbeat(name="new", at=clock.now()))
    session.flush()


@pytest.mark.usefixtures("on_postgres")
def test_nothing_is_written_from_a_reading_unit(outsider: psycopg.Connection[Any]) -> None:
    with reading() as session, pytest.raises(UnitError, match="does not write"):
        add_a_beat(session)
    with reading() as session, pytest.raises(UnitError, match="does not write"):
        session.execute(db.insert(Heartbeat).values(name="new", at=clock.now()))
    with reading() as session, pytest.raises(UnitError, match="does not write"):
        session.execute(db.insert(table_of(Heartbeat)), {"name": "new", "at": clock.now()})
    assert beats(outsider) == 0


@pytest.mark.usefixtures("on_postgres")
def test_a_unit_after_a_reading_one_still_rolls_back_as_a_whole(outsider: psycopg.Connection[Any]) -> None:
    with reading() as session:
        session.execute(text("SELECT 1"))

    def fail() -> None:
        with unit_of_work() as session:
            add_a_beat(session)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert beats(outsider) == 0


def test_an_audit_may_read_for_longer_than_a_request_and_takes_its_time_from_nobody_else(
    on_postgres: Flask,
) -> None:
    asked = text("SHOW statement_timeout")
    with snapshot() as session:
        assert session.scalar(asked) == "15min"
    with unit_of_work() as session:
        assert session.scalar(asked) == "1min"
    assert on_postgres.testing
