"""The only code that commits. A unit is one database transaction of a story; units never nest.

Raise inside a unit = roll back; return = commit. Outside a unit the session refuses to work, so no
connection is ever held by accident, and inside a unit the network is forbidden (`assert_no_unit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

import structlog
from sqlalchemy import event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.orm import ORMExecuteState, Session

from app.extensions import db

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Unit:
    commits_each_statement: bool = False
    after_commit: list[Callable[[], object]] = field(default_factory=list)


_SNAPSHOT_SECONDS = 900
IDLE_IN_TRANSACTION = "25P03"
"""`idle_in_transaction_session_timeout` of PostgreSQL's appendix A."""
_current: ContextVar[_Unit | None] = ContextVar("unit_of_work", default=None)


class UnitError(RuntimeError):
    """A rule of the unit of work was broken: a defect in our code, never the caller's fault."""


class CommitUnknownError(SQLAlchemyError):
    """The database went away before it answered to COMMIT: all of the unit was done, or nothing."""


@contextmanager
def unit_of_work() -> Iterator[Session]:
    """Open the transaction of one story step, commit it on return and roll it back on an exception.

    Callbacks given to `after_commit` run once the commit is done, outside the unit.

    Raises: UnitError when a unit is open already; CommitUnknownError.
    """
    unit = _enter()
    token = _current.set(unit)
    session = db.session()
    try:
        yield session
        session.flush()
        _commit(session)
    except BaseException:
        session.rollback()
        raise
    finally:
        session.close()
        _current.reset(token)
    for callback in unit.after_commit:
        try:
            callback()
        except Exception:
            # The commit stands; sweeps find what a lost callback left undone.
            _log.exception("after_commit_failed")


@contextmanager
def reading() -> Iterator[Session]:
    """Open a unit for reading only; whatever happens, nothing is committed.

    Raises: UnitError when a unit is open already, or for writing where a statement would commit at once.
    """
    unit = _enter()
    token = _current.set(unit)
    session = db.session()
    try:
        if session.get_bind().dialect.name == "postgresql":
            # READ COMMITTED shows each statement a state of its own, so a transaction around reads would add
            # nothing but two more round trips. SQLite's driver opens none for reading.
            unit.commits_each_statement = True
            session.connection(execution_options={"isolation_level": "AUTOCOMMIT"})
        yield session
    finally:
        session.close()  # which rolls back
        _current.reset(token)


@contextmanager
def snapshot() -> Iterator[Session]:
    """Open a unit for reading whose statements all see the database at one moment, for audits.

    Raises: UnitError when a unit is open already.
    """
    token = _current.set(_enter())
    session = db.session()
    try:
        if session.get_bind().dialect.name == "postgresql":
            connection = session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            # It reads whole tables, and keeps nobody waiting: the limit for requests is none for it.
            connection.exec_driver_sql(f"SET LOCAL statement_timeout = {_SNAPSHOT_SECONDS * 1000}")
        else:
            session.connection().exec_driver_sql("BEGIN DEFERRED")
        yield session
    finally:
        session.rollback()
        session.close()
        _current.reset(token)


def after_commit(callback: Callable[[], object]) -> None:
    """Run a callback after the current unit's commit, and not at all when it rolls back.

    Raises: UnitError outside a unit.
    """
    unit = _current.get()
    if unit is None:
        msg = "after_commit needs an open unit of work"
        raise UnitError(msg)
    unit.after_commit.append(callback)


def assert_no_unit() -> None:
    """Refuse network calls while a database transaction is open; every adapter calls this first.

    Raises: UnitError inside a unit.
    """
    if _current.get() is not None:
        msg = "no network call inside a unit of work: it would hold locks while waiting for others"
        raise UnitError(msg)


def _commit(session: Session) -> None:
    try:
        session.commit()
    except DBAPIError as error:
        # A session that was idle for too long had ended before: nothing was done.
        if error.connection_invalidated and getattr(error.orig, "sqlstate", None) != IDLE_IN_TRANSACTION:
            raise CommitUnknownError from error
        raise


def _enter() -> _Unit:
    if _current.get() is not None:
        msg = "units of work do not nest"
        raise UnitError(msg)
    return _Unit()


def _refuse_writing_in_a_reading_unit() -> None:
    unit = _current.get()
    if unit is not None and unit.commits_each_statement:
        msg = "a reading unit does not write"
        raise UnitError(msg)


@event.listens_for(db.session, "after_begin")  # type: ignore[arg-type, unused-ignore]
def _refuse_work_outside_a_unit(_session: Session, _transaction: object, _connection: object) -> None:
    if _current.get() is None:
        msg = "the session was used outside a unit of work"
        raise UnitError(msg)


@event.listens_for(db.session, "do_orm_execute")  # type: ignore[arg-type, unused-ignore]
def _refuse_statements_that_write(state: ORMExecuteState) -> None:
    if state.is_insert or state.is_update or state.is_delete:
        _refuse_writing_in_a_reading_unit()


@event.listens_for(db.session, "before_flush")  # type: ignore[arg-type, unused-ignore]
def _refuse_changed_objects(session: Session, _context: object, _instances: object) -> None:
    if session.new or session.dirty or session.deleted:
        _refuse_writing_in_a_reading_unit()
