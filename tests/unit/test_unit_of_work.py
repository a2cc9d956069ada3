"""Units of work commit on return, roll back on exceptions, do not nest, and permit no network calls."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager

import pytest
from flask import Flask
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.orm import Session

from app.core import clock
from app.db import unit_of_work as unit
from app.db.leases import Heartbeat
from app.db.prepared import commit_part
from app.db.unit_of_work import (
    CommitUnknownError,
    UnitError,
    after_commit,
    assert_no_unit,
    read_only_unit,
    unit_of_work,
)
from app.extensions import db
from tests.support.ledger import race

Unit = Callable[[], AbstractContextManager[Session]]


class Boom(Exception):
    """An error inside a unit."""


def add(name: str) -> None:
    db.session.add(Heartbeat(name=name, at=clock.now()))


def names_on_disk(url: str) -> list[str]:
    """Read with another connection, which sees only what was committed."""
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        rows = connection.execute("SELECT name FROM heartbeats ORDER BY name").fetchall()
    connection.close()
    return [row[0] for row in rows]


def fail_in_unit(error: BaseException, *, after_commit: Callable[[], object] = lambda: None) -> None:
    with unit_of_work() as session:
        unit.after_commit(after_commit)
        add("lost")
        session.flush()
        raise error


@pytest.fixture(autouse=True)
def _context(app: Flask) -> object:
    with app.app_context():
        yield


def test_a_unit_commits_on_return_and_rolls_back_on_an_exception(sqlite_url: str) -> None:
    with unit_of_work():
        add("kept")
    with pytest.raises(Boom):
        fail_in_unit(Boom())
    assert names_on_disk(sqlite_url) == ["kept"]


def test_an_interrupt_rolls_back_too(sqlite_url: str) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail_in_unit(KeyboardInterrupt())
    assert names_on_disk(sqlite_url) == []


def test_a_failing_commit_rolls_back_and_leaves_the_next_unit_intact(sqlite_url: str) -> None:
    with unit_of_work():
        add("one")
    called: list[str] = []

    def add_one_twice() -> None:
        with unit_of_work():
            add("two")
            after_commit(lambda: called.append("never"))
            add("one")

    with pytest.raises(IntegrityError):
        add_one_twice()
    with unit_of_work():
        add("three")
    assert names_on_disk(sqlite_url) == ["one", "three"]
    assert called == []


@pytest.mark.parametrize("outer", [unit_of_work, read_only_unit])
@pytest.mark.parametrize("inner", [unit_of_work, read_only_unit])
def test_units_do_not_nest(outer: Unit, inner: Unit, sqlite_url: str) -> None:
    def nest() -> None:
        with outer():
            add("lost")
            with inner():
                raise AssertionError("a nested unit was opened")

    with pytest.raises(UnitError, match="do not nest"):
        nest()
    assert names_on_disk(sqlite_url) == []
    with inner():
        pass


def test_the_session_refuses_to_work_outside_a_unit() -> None:
    with pytest.raises(UnitError, match="outside a unit"):
        db.session.execute(text("SELECT 1"))
    with unit_of_work() as session:
        assert session.scalar(text("SELECT 1")) == 1
    with pytest.raises(UnitError, match="outside a unit"):
        db.session.execute(text("SELECT 1"))


@pytest.mark.parametrize("kind", [unit_of_work, read_only_unit])
def test_the_network_is_forbidden_while_a_unit_is_open(kind: Unit) -> None:
    assert_no_unit()
    with kind(), pytest.raises(UnitError, match="no network call"):
        assert_no_unit()
    assert_no_unit()


def test_jobs_are_enqueued_after_the_commit_in_order_and_outside_the_unit(sqlite_url: str) -> None:
    calls: list[tuple[str, list[str]]] = []

    def note(name: str) -> None:
        assert_no_unit()
        calls.append((name, names_on_disk(sqlite_url)))

    with unit_of_work():
        after_commit(lambda: note("first"))
        after_commit(lambda: note("second"))
        add("one")
        assert calls == []
    assert calls == [("first", ["one"]), ("second", ["one"])]


def test_a_callback_that_fails_stops_neither_the_others_nor_the_request(sqlite_url: str) -> None:
    called: list[str] = []

    def fail() -> None:
        raise Boom

    with unit_of_work():
        add("one")
        after_commit(fail)
        after_commit(lambda: called.append("second"))
    assert names_on_disk(sqlite_url) == ["one"]
    assert called == ["second"]


def test_a_callback_may_open_a_unit_of_its_own(sqlite_url: str) -> None:
    def follow() -> None:
        with unit_of_work():
            add("two")

    with unit_of_work():
        add("one")
        after_commit(follow)
    assert names_on_disk(sqlite_url) == ["one", "two"]


def test_nothing_is_called_after_a_rollback() -> None:
    called: list[str] = []
    with pytest.raises(Boom):
        fail_in_unit(Boom(), after_commit=lambda: called.append("never"))
    with unit_of_work():
        pass
    assert called == []
    with pytest.raises(UnitError, match="needs an open unit"):
        after_commit(lambda: None)


@pytest.fixture
def each_app(each_database_url: str, build_app: Callable[..., Flask]) -> Iterator[Flask]:
    app = build_app(each_database_url)
    with app.app_context():
        yield app


def committed_names() -> list[str]:
    with db.engine.connect() as connection:
        return list(connection.scalars(select(Heartbeat.name).order_by(Heartbeat.name)))


@pytest.mark.usefixtures("each_app")
def test_a_part_stays_committed_and_is_announced_if_the_rest_fails() -> None:
    called: list[str] = []

    def announce(name: str) -> None:
        assert_no_unit()
        called.append(name)

    def fail_after_a_part() -> None:
        with unit_of_work() as session:
            after_commit(lambda: announce("part"))
            add("part")
            commit_part(session)
            assert committed_names() == ["part"]
            after_commit(lambda: announce("rest"))
            add("rest")
            session.flush()
            raise Boom

    with pytest.raises(Boom):
        fail_after_a_part()
    assert (committed_names(), called) == (["part"], ["part"])


@pytest.mark.postgres
@pytest.mark.parametrize("is_before", [True, False])
def test_a_part_whose_commit_was_lost_is_unknown_and_one_before_the_loss_stays(
    build_app: Callable[..., Flask],
    postgres_url: str,
    is_before: bool,  # noqa: FBT001
) -> None:
    called: list[str] = []

    def lose(backend: int) -> None:
        with db.engine.connect() as other:
            other.execute(text("SELECT pg_terminate_backend(:backend, 5000)"), {"backend": backend})

    def work() -> None:
        with unit_of_work() as session:
            after_commit(lambda: called.append("part"))
            add("part")
            session.flush()
            backend = session.scalar(text("SELECT pg_backend_pid()"))
            if is_before:
                lose(backend)
            commit_part(session)
            lose(backend)
            add("rest")

    with build_app(postgres_url).app_context():
        with pytest.raises(CommitUnknownError if is_before else DBAPIError):
            work()
        assert (committed_names(), called) == (([], []) if is_before else (["part"], ["part"]))


def test_locks_of_a_committed_part_are_free(each_app: Flask) -> None:
    with unit_of_work():
        add("row")
    change = update(Heartbeat).values(at=clock.now())

    def change_elsewhere() -> None:
        with each_app.app_context(), unit_of_work() as other:
            other.execute(change)

    with unit_of_work() as session:
        session.execute(change)
        commit_part(session)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(change_elsewhere).result(20)


def test_units_of_different_threads_are_independent(app: Flask, sqlite_url: str) -> None:
    def adding(name: str) -> Callable[[], None]:
        def run() -> None:
            with unit_of_work():
                add(name)

        return run

    race(app, [adding(f"{number:02}") for number in range(8)])
    assert names_on_disk(sqlite_url) == [f"{number:02}" for number in range(8)]


def test_units_that_touch_a_row_before_they_read_it_lose_no_update(app: Flask) -> None:
    with unit_of_work() as session:
        session.execute(text("CREATE TABLE counted (n INTEGER NOT NULL)"))
        session.execute(text("INSERT INTO counted VALUES (0)"))

    def count() -> None:
        with unit_of_work() as session:
            session.execute(text("UPDATE counted SET n = n"))
            n = session.scalar(text("SELECT n FROM counted"))
            session.execute(text("UPDATE counted SET n = :n"), {"n": (n or 0) + 1})

    race(app, [count] * 12)
    with read_only_unit() as session:
        assert session.scalar(text("SELECT n FROM counted")) == 12
