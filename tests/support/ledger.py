"""The packages of credits, spending and usage alone on a database, with units, races and audits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from types import SimpleNamespace
from typing import Concatenate, ParamSpec, TypeVar

from flask import Flask
from sqlalchemy import delete, event, update
from sqlalchemy.orm import Session

from app.adapters.vault import LocalVault
from app.authenticated import VerifiedRows
from app.credits import audit as credits_audit
from app.credits.models import CreditAccount
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.errors import ServiceError
from app.extensions import db
from app.factory import _engine_options, prepare_sqlite
from app.spending import audit as spending_audit
from app.usage import audit as usage_audit
from tests.support.applications import settings_for
from tests.support.waiting import PATIENCE_SECONDS

T = TypeVar("T")
P = ParamSpec("P")


def ledger_app(database_url: str) -> Flask:
    """Create a minimal application on an empty database with all tables."""
    app = Flask("ledger")
    app.config["SQLALCHEMY_DATABASE_URI"] = database_url
    in_memory = database_url == "sqlite://"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {} if in_memory else _engine_options(settings_for(database_url))
    db.init_app(app)
    settings, seen = settings_for(database_url), VerifiedRows()
    vault = LocalVault(settings.encryption_key_list())
    # What authenticated rows need.
    app.state = SimpleNamespace(settings=settings, ports=SimpleNamespace(vault=vault), part=lambda _: seen)  # type: ignore[attr-defined]
    with app.app_context():
        if db.engine.dialect.name == "sqlite":
            event.listen(db.engine, "connect", prepare_sqlite)
        db.create_all(bind_key=None)
    return app


def clear() -> None:
    """Empty all tables, in the current application context."""
    # Not in a unit, which would have to keep the order of locks.
    with db.engine.begin() as connection:
        for table in reversed(db.metadata.sorted_tables):
            connection.execute(delete(table))


def unit(function: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in a separate unit of work."""
    with unit_of_work() as session:
        return function(session, *arguments, **options)


def read(function: Callable[Concatenate[Session, P], T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a function in a separate read-only unit."""
    with read_only_unit() as session:
        return function(session, *arguments, **options)


def violations() -> list[str]:
    """Run the audits of these packages."""
    with read_only_unit() as session:
        return [*credits_audit.check(session), *spending_audit.check(session), *usage_audit.check(session)]


def race(app: Flask, actions: list[Callable[[], T]]) -> list[T | ServiceError]:
    """Run actions concurrently, each in its own thread and context; return results or errors."""
    start = Barrier(len(actions))

    def run(action: Callable[[], T]) -> T | ServiceError:
        with app.app_context():
            start.wait(PATIENCE_SECONDS)
            try:
                return action()
            except ServiceError as refusal:
                return refusal

    with ThreadPoolExecutor(len(actions)) as threads:
        return list(threads.map(run, actions))


@contextmanager
def statements() -> Iterator[list[str]]:
    """Collect the SQL statements that are executed inside the context."""
    seen: list[str] = []

    def note(_cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    # Not `before_cursor_execute`, which prepared statements do not have.
    engine = db.engine
    events = ("do_execute", "do_executemany", "do_execute_no_params")
    for name in events:
        event.listen(engine, name, note)
    try:
        yield seen
    finally:
        for name in events:
            event.remove(engine, name, note)


def change_balances_by(nanos: int) -> None:
    """Change the granted sums of accounts without a ledger entry."""
    with unit_of_work() as session:
        session.execute(
            update(CreditAccount).values(
                available_nanos=CreditAccount.available_nanos + nanos, granted_nanos=CreditAccount.granted_nanos + nanos
            )
        )
