"""The money rooms alone on a database: a bare application, units, races, and all audits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import ParamSpec, TypeVar

from flask import Flask
from sqlalchemy import event

from app.core.unit_of_work import reading, unit_of_work
from app.credits import audit as credits_audit
from app.credits.models import CreditAccount, CreditHold, CreditPosting, GrantBudget
from app.errors import ServiceError
from app.extensions import Model, db
from app.factory import _engine_options
from app.spending import audit as spending_audit
from app.spending.models import SpendingAccount, SpendingControls, SpendingHold
from app.usage import audit as usage_audit
from app.usage.models import UsageByProvider, UsageLog
from tests.support.applications import settings_for

T = TypeVar("T")
P = ParamSpec("P")

TABLES: tuple[type[Model], ...] = (
    CreditAccount,
    CreditPosting,
    CreditHold,
    GrantBudget,
    SpendingAccount,
    SpendingControls,
    SpendingHold,
    UsageLog,
    UsageByProvider,
)


def ledger_app(database_url: str) -> Flask:
    """Make a bare application on an empty database that has the money rooms' tables and nothing else."""
    app = Flask("ledger")
    app.config["SQLALCHEMY_DATABASE_URI"] = database_url
    in_memory = database_url == "sqlite://"
    app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {} if in_memory else _engine_options(settings_for(database_url))
    db.init_app(app)
    with app.app_context():
        db.metadata.create_all(
            db.engine, tables=[db.metadata.tables[table.__tablename__] for table in TABLES]
        )
    return app


def clear() -> None:
    """Empty all tables, in the current application context."""
    with unit_of_work() as session:
        for table in reversed(TABLES):
            session.query(table).delete()


def unit(verb: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a verb in a unit of its own."""
    with unit_of_work():
        return verb(*arguments, **options)


def read(verb: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """Call a verb in a reading unit of its own."""
    with reading():
        return verb(*arguments, **options)


def violations() -> list[str]:
    """Run the audits of all money rooms."""
    with reading():
        return [*credits_audit.check(), *spending_audit.check(), *usage_audit.check()]


def race(app: Flask, actions: list[Callable[[], T]]) -> list[T | ServiceError]:
    """Run actions at the same moment, each in a thread and context of its own; return answers or refusals."""
    start = Barrier(len(actions))

    def run(action: Callable[[], T]) -> T | ServiceError:
        with app.app_context():
            start.wait(timeout=30)
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

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        seen.append(statement)

    engine = db.engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)
