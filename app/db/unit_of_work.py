"""Units of work: database transactions, which only this module commits. Units do not nest.

A unit commits on return and rolls back on an exception. Outside a unit the session raises, so that no connection is
held by accident; inside a unit network calls raise (`assert_no_unit`).

A request for a busy row waits for `striped_lock` in the process, without a connection: the row lock decides. Work in
batches pauses between its units, because a waiting writer of SQLite polls and would always find the database locked.
"""

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Self

import structlog
from sqlalchemy import Select, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as SqlTimeoutError
from sqlalchemy.orm import ORMExecuteState, Session
from sqlalchemy.pool import PoolProxiedConnection

from app.core.identifiers import require
from app.db import lock_order
from app.db.lock_order import LockRank
from app.extensions import db

_TIMEOUT_SECONDS = 60
# Names with the same hash share a lock, which is rare and harmless.
_LOCKS = tuple(threading.Lock() for _ in range(1024))


@contextmanager
def striped_lock(name: str, *, timeout_seconds: int = _TIMEOUT_SECONDS) -> Iterator[bool]:
    """Acquire a name's lock, before the unit; yield whether that succeeded in time. Raises: UnitError inside a unit."""
    assert_no_unit()
    lock = _LOCKS[hash(name) % len(_LOCKS)]
    acquired = lock.acquire(timeout=timeout_seconds)
    try:
        yield acquired
    finally:
        if acquired:
            lock.release()


_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Unit:
    """A unit, which is open in this thread while it is entered."""

    is_read_only: bool = False
    locked: set[LockRank] = field(default_factory=set)
    inserted: set[LockRank] = field(default_factory=set)
    after_commit: list[Callable[[], object]] = field(default_factory=list)
    due: list[Callable[[], object]] = field(default_factory=list)
    """Callbacks of what was committed."""
    _token: "Token[_Unit | None]" = field(init=False)

    def __enter__(self) -> Self:
        if is_unit_open():
            raise UnitError("units of work do not nest")
        self._token = _current.set(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _current.reset(self._token)

    def end_part(self) -> None:
        """Start again without locks after a commit."""
        self.due += self.after_commit
        for each in (self.after_commit, self.locked, self.inserted):
            each.clear()

    def run_callbacks(self) -> None:
        for callback in self.due:
            try:
                callback()
            except Exception:
                # The commit stands; sweeps complete what a failed callback left.
                _log.exception("after_commit_failed")


_READS = re.compile(r"\s*(?:SELECT|WITH|SHOW|EXPLAIN|PRAGMA)\b", re.IGNORECASE)
# Common table expressions that write, and row locks (FOR UPDATE among them).
_WRITES_OR_LOCKS = re.compile(r"\b(?:INSERT|UPDATE|DELETE|MERGE|FOR\s+(?:KEY\s+)?SHARE)\b", re.IGNORECASE)
IDLE_IN_TRANSACTION, READ_ONLY = "25P03", "25006"
"""`idle_in_transaction_session_timeout` of PostgreSQL's appendix A."""
_current: ContextVar[_Unit | None] = ContextVar("unit_of_work", default=None)


class UnitError(RuntimeError):
    """A rule of units of work was violated, which is a defect of the code."""


class CommitUnknownError(SQLAlchemyError):
    """The connection was lost during COMMIT: the unit was committed completely or not at all."""


class ReadOnlySession(Session):
    """The session of a unit for reading: it connects at its first statement."""

    bind: Engine


@contextmanager
def unit_of_work() -> Iterator[Session]:
    """Open a transaction; commit it on return, roll back on an exception. Raises: UnitError, CommitUnknownError."""
    session, unit = db.session(), _Unit()
    try:
        with _open_unit(session, unit):
            yield session
            session.flush()
            with _committing():
                session.commit()
            unit.end_part()
    finally:
        unit.run_callbacks()


def end_part(session: Session, commit: Callable[[], object]) -> None:
    """End a part of the current unit with a commit; see `prepared.commit_part`."""
    unit = require(_current.get(), UnitError("a part of a unit of work ends inside it"))
    session.flush()
    with _committing():
        commit()
    session.expire_all()
    unit.end_part()


@contextmanager
def _committing() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        # The server ended an idle transaction before COMMIT: nothing was done.
        if error.connection_invalidated and getattr(error.orig, "sqlstate", None) != IDLE_IN_TRANSACTION:
            raise CommitUnknownError from error
        raise


@contextmanager
def read_only_unit(engine: Engine | None = None) -> Iterator[Session]:
    """Open a unit for reading, on another engine if one is given.

    Raises: UnitError in a unit, and on a statement that writes or locks rows.
    """
    engine = engine or db.engine
    # Under READ COMMITTED each statement has its own snapshot, so that a transaction would only add two round trips.
    # SQLite's driver opens none for reading. A write would be final immediately.
    session = ReadOnlySession(_autocommit(engine) if engine.dialect.name == "postgresql" else engine)
    with _open_unit(session, _Unit(is_read_only=True)):
        yield session


@functools.lru_cache(maxsize=8)
def _autocommit(engine: Engine) -> Engine:
    return engine.execution_options(isolation_level="AUTOCOMMIT")


@contextmanager
def driver_connection(engine: Engine) -> Iterator[PoolProxiedConnection]:
    """Borrow a connection without a transaction; after an exception, which may leave it in any state, it is closed."""
    pooled = engine.raw_connection()
    try:
        yield pooled
    except BaseException:
        pooled.invalidate()
        raise
    pooled.close()


def check_statement(statement: str) -> None:
    """Check a statement that is a unit of its own as `guard` checks those of other units. Raises: UnitError."""
    with _Unit():
        for check in db.engine.dialect.dispatch.do_execute:
            check(None, statement)


@contextmanager
def snapshot(engine: Engine | None = None) -> Iterator[Session]:
    """Open a unit for reading in which all statements see one snapshot, for audits, on another engine if one is given.

    Raises: UnitError in a unit.
    """
    session, unit = ReadOnlySession(engine or db.engine), _Unit()
    with _open_unit(session, unit):
        if session.get_bind().dialect.name == "postgresql":
            connection = session.connection(execution_options={"isolation_level": "REPEATABLE READ"})
            # It reads whole tables and locks none, so that the timeout of requests does not apply.
            connection.exec_driver_sql("SET LOCAL statement_timeout = '900s'")
        else:
            session.connection().exec_driver_sql("BEGIN DEFERRED")
        unit.is_read_only = True
        yield session


def after_commit(callback: Callable[[], object]) -> None:
    """Run a callback after the current unit's commit; not after a rollback. Raises: UnitError outside a unit."""
    require(_current.get(), UnitError("after_commit needs an open unit of work")).after_commit.append(callback)


def is_unit_open() -> bool:
    return _current.get() is not None


def assert_no_unit() -> None:
    """Forbid network calls in a transaction; every adapter calls this first. Raises: UnitError inside a unit."""
    if is_unit_open():
        raise UnitError("no network call inside a unit of work: it would hold locks while waiting")


def is_unavailable(error: Exception) -> bool:
    """Return whether an error is the database's: no connection or lock in time, or the connection was lost."""
    if isinstance(error, SqlTimeoutError | OperationalError):
        return True
    # PostgreSQL ends a transaction that idles too long, for instance because its process is starved. A replica that is
    # being promoted has the leader's address before it may write.
    return getattr(getattr(error, "orig", None), "sqlstate", None) in (IDLE_IN_TRANSACTION, READ_ONLY)


@contextmanager
def _open_unit(session: Session, unit: _Unit) -> Iterator[None]:
    """Open a unit, and close its session at the end, which rolls back what was not committed."""
    with unit:
        try:
            yield
        finally:
            try:
                session.close()
            except SQLAlchemyError:
                # The connection was lost, or an exception interrupted its driver: the server rolls back.
                session.invalidate()


@event.listens_for(ReadOnlySession, "after_begin")
@event.listens_for(db.session, "after_begin")  # type: ignore[arg-type, unused-ignore]
def _reject_work_outside_unit(_session: Session, _transaction: object, _connection: object) -> None:
    if not is_unit_open():
        raise UnitError("the session was used outside a unit of work")


@event.listens_for(db.session, "do_orm_execute")
def _lock_on_sqlite(state: ORMExecuteState) -> None:
    """Begin the transaction before a SELECT ... FOR UPDATE: SQLite renders no lock, and begins only before a write."""
    statement = state.statement
    if isinstance(statement, Select) and statement._for_update_arg is not None:  # noqa: SLF001 - nothing public tells
        connection = state.session.connection()
        if connection.dialect.name == "sqlite" and not connection.connection.driver_connection.in_transaction:  # type: ignore[union-attr]
            connection.exec_driver_sql("BEGIN IMMEDIATE")


def guard(engine: Engine, *, refuses_wrong_lock_order: bool) -> None:
    """Check each statement of a unit, whether from the ORM or on a raw connection, before it is sent.

    A read-only unit neither writes nor locks rows. Another unit locks rows in the order of `LockRank`; where it does
    not, the statement is refused, or an error is logged and PostgreSQL ends the rare deadlock.
    """

    def check(_cursor: object, statement: str, *_rest: object) -> None:
        unit = _current.get()
        if unit is None:
            return
        if unit.is_read_only:
            if not only_reads(statement):
                raise UnitError("a read-only unit neither writes nor locks rows")
            return
        problem = lock_order.check(statement, unit.locked, unit.inserted)
        if problem and refuses_wrong_lock_order:
            raise UnitError(problem)
        if problem:
            _log.error("wrong_lock_order", problem=problem)

    # The events of the engine would cost every statement more: with a listener, SQLAlchemy takes a slower path.
    for name in ("do_execute", "do_executemany", "do_execute_no_params"):
        event.listen(engine, name, check)


@functools.lru_cache(maxsize=2048)
def only_reads(statement: str) -> bool:
    return _READS.match(statement) is not None and _WRITES_OR_LOCKS.search(statement) is None


_NANOS_PER_SECOND = 10**9
_MAX_PAUSE_NS = _NANOS_PER_SECOND // 10
_BATCHES_NS = 8 * _NANOS_PER_SECOND


def batches(max_batches: int) -> Iterator[None]:
    """Yield once per batch, for about eight seconds; pause after each as long as it took."""
    deadline_ns = time.monotonic_ns() + _BATCHES_NS
    for _ in range(max_batches):
        started_ns = time.monotonic_ns()
        yield
        now = time.monotonic_ns()
        if now >= deadline_ns:
            return
        time.sleep(min(now - started_ns, _MAX_PAUSE_NS) / _NANOS_PER_SECOND)


def run_in_batches(step: Callable[[int], int], *, batch_size: int, max_batches: int) -> int:
    """Repeat a step of at most `batch_size` rows until it processes fewer; return the total."""
    total = 0
    for _ in batches(max_batches):
        count = step(batch_size)
        total += count
        if count < batch_size:
            break
    return total
