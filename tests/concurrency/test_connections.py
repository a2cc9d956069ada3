"""Database connections: dead ones are replaced, and read-only units store nothing on PostgreSQL."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest
from flask import Flask
from psycopg.pq import TransactionStatus
from sqlalchemy import text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DisconnectionError, OperationalError
from sqlalchemy.orm import Session

from app.core import clock
from app.db import pool_liveness
from app.db.leases import Heartbeat
from app.db.unit_of_work import read_only_unit, snapshot, unit_of_work
from tests.support.waiting import PATIENCE_SECONDS


# The database fixture comes first, so that it outlives the application, which is audited at its end.
@pytest.fixture
def on_postgres(postgres_url: str, build_app: Callable[..., Flask]) -> Iterator[Flask]:
    app = build_app(postgres_url)
    with app.app_context():
        yield app


@pytest.fixture
def outsider(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection outside the application."""
    url = make_url(postgres_url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def terminate_all_but(outsider: psycopg.Connection[Any]) -> int:
    terminated = outsider.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )
    return len(terminated.fetchall())


def count_heartbeats(outsider: psycopg.Connection[Any]) -> int:
    row = outsider.execute("SELECT count(*) FROM heartbeats").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize("unit", [unit_of_work, read_only_unit])
def test_a_connection_just_closed_by_the_server_fails_no_unit(unit: Any, outsider: psycopg.Connection[Any]) -> None:
    with unit() as session:
        session.execute(text("SELECT 1"))
    assert terminate_all_but(outsider) == 1
    with unit() as session:
        assert session.scalar(text("SELECT 1")) == 1


@pytest.mark.usefixtures("on_postgres")
@pytest.mark.parametrize("unit", [unit_of_work, read_only_unit, snapshot])
def test_a_unit_that_loses_its_connection_raises_its_own_error_and_prevents_no_other(
    unit: Any, outsider: psycopg.Connection[Any]
) -> None:
    def lose_the_connection_and_fail() -> None:
        with unit() as session:
            session.execute(text("SELECT 1"))
            assert terminate_all_but(outsider) == 1
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lose_the_connection_and_fail()
    with unit() as session:
        assert session.scalar(text("SELECT 1")) == 1


@pytest.mark.usefixtures("on_postgres")
def test_a_server_that_disappears_without_closing_its_connections_is_given_up_after_half_a_minute() -> None:
    # The kernel counts from the last sign of life, and looks only when a probe is due. macOS lacks some options.
    expected = {"TCP_USER_TIMEOUT": 30_000, "TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 5}
    with read_only_unit() as session:
        descriptor = session.connection().connection.dbapi_connection.fileno()  # type: ignore[union-attr]
        with socket.socket(fileno=descriptor) as connected:
            for name in expected.keys() & vars(socket).keys():
                assert connected.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == expected[name], name
            connected.detach()


def idle_connection(url: str) -> tuple[psycopg.Connection[Any], Any]:
    connection = psycopg.connect(make_url(url).set(drivername="postgresql").render_as_string(hide_password=False))
    return connection, SimpleNamespace(info={"resting_since": time.monotonic() - 3600})


def test_a_long_idle_connection_is_checked_and_left_unchanged(postgres_url: str) -> None:
    connection, entry = idle_connection(postgres_url)
    with connection:
        pool_liveness._discard_dead_connection(connection, entry, None)
        assert connection.info.transaction_status is TransactionStatus.IDLE
        assert connection.autocommit is False


def test_a_connection_that_died_while_idle_is_discarded(postgres_url: str, outsider: psycopg.Connection[Any]) -> None:
    connection, entry = idle_connection(postgres_url)
    assert terminate_all_but(outsider) == 1
    with pytest.raises(DisconnectionError):
        pool_liveness._discard_dead_connection(connection, entry, None)
    connection.close()


def add_heartbeat(session: Session) -> None:
    session.add(Heartbeat(name="new", at=clock.now()))
    session.flush()


@pytest.mark.usefixtures("on_postgres")
def test_a_unit_after_a_read_only_one_rolls_back_completely(outsider: psycopg.Connection[Any]) -> None:
    with read_only_unit() as session:
        session.execute(text("SELECT 1"))

    def fail() -> None:
        with unit_of_work() as session:
            add_heartbeat(session)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert count_heartbeats(outsider) == 0


@pytest.mark.usefixtures("on_postgres")
def test_of_two_units_that_wait_for_each_other_one_rolls_back_and_may_be_repeated(
    on_postgres: Flask, outsider: psycopg.Connection[Any]
) -> None:
    with unit_of_work() as session:
        session.add_all([Heartbeat(name=name, at=clock.now()) for name in ("one", "two")])
    both_locked = Barrier(2)

    def lock(first: str, second: str) -> str:
        with on_postgres.app_context(), unit_of_work() as session:
            session.add(Heartbeat(name=f"after {first}", at=clock.now()))
            touch(session, first)
            both_locked.wait(PATIENCE_SECONDS)
            touch(session, second)
        return f"after {first}"

    with ThreadPoolExecutor(2) as threads:
        units = [threads.submit(lock, "one", "two"), threads.submit(lock, "two", "one")]
        errors = [unit.exception(PATIENCE_SECONDS) for unit in units]
    [failed] = [error for error in errors if error is not None]
    # Answered 503 OVERLOADED, as every unit that certainly did nothing.
    assert isinstance(failed, OperationalError)
    [committed] = [unit.result() for unit in units if unit.exception() is None]
    found = outsider.execute("SELECT name FROM heartbeats WHERE name LIKE 'after %'").fetchall()
    assert found == [(committed,)]


def touch(session: Session, name: str) -> None:
    session.execute(update(Heartbeat).where(Heartbeat.name == name).values(at=clock.now()))


def test_an_audit_has_a_longer_statement_timeout_that_does_not_leak(on_postgres: Flask) -> None:
    query = text("SHOW statement_timeout")
    with snapshot() as session:
        assert session.scalar(query) == "15min"
    with unit_of_work() as session:
        assert session.scalar(query) == "1min"
    assert on_postgres.testing
