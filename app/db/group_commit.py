"""Group commit: operations of concurrent threads share one transaction, and so its round trips and its fsync.

No separate thread commits. The first operation leads if none is running: it runs all that wait, its own included, and
then the next that waits leads. Alone, an operation does not wait. A thread may stop waiting, after a timeout or
because of an exception raised in it from outside: its operation is cancelled unless it has begun, and if it was to
lead, the next one does.
"""

import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Generic, TypeVar

from psycopg import Error
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus
from sqlalchemy import event
from sqlalchemy.engine import Engine

from app.db import pool_liveness
from app.db.libpq import PreparedStatements
from app.db.prepared import PreparedRead
from app.db.unit_of_work import CommitUnknownError, check_statement
from app.extensions import db

JobT = TypeVar("JobT")
ResultT = TypeVar("ResultT")
_MAX_BATCH = 64
_MAX_WAIT = timedelta(seconds=20)
"""Longer than the locks and the fsync of a batch take; a lost connection may take longer."""


class NotStartedError(Exception):
    """The batches before took too long: nothing was done for this operation."""


@dataclass(slots=True, eq=False)
class _Waiting(Generic[JobT, ResultT]):
    job: JobT
    gate: threading.Lock = field(default_factory=threading.Lock)
    leads: bool = False
    result: ResultT | None = None
    error: Exception | None = None


class GroupCommit(Generic[JobT, ResultT]):
    """Runs jobs in batches: `execute` gets at least one, and returns the result of each, in order."""

    def __init__(
        self, execute: Callable[[Sequence[JobT]], Sequence[ResultT]], *, max_wait: timedelta = _MAX_WAIT
    ) -> None:
        self._execute, self._max_wait = execute, max_wait
        self._lock = threading.Lock()
        self._waiting: deque[_Waiting[JobT, ResultT]] = deque()
        self._is_busy = False

    def run(self, job: JobT) -> ResultT:
        """Run a job with those of other threads; return its result.

        Raises: what `execute` raised for its batch; CommitUnknownError if the batch was interrupted or has not ended in
        time; NotStartedError.
        """
        own: _Waiting[JobT, ResultT] = _Waiting(job)
        own.gate.acquire()
        try:
            with self._lock:
                self._waiting.append(own)
                own.leads = not self._is_busy
                self._is_busy = True
            if not own.leads:
                self._await(own)
            if own.leads:
                self._lead(own)
        except BaseException:
            self._leave(own)
            raise
        if own.error is not None:
            raise own.error
        return own.result  # type: ignore[return-value]

    def _await(self, own: _Waiting[JobT, ResultT]) -> None:
        """Wait until a leader has run the job, or this thread leads. Raises: CommitUnknownError, NotStartedError."""
        if own.gate.acquire(timeout=self._max_wait.total_seconds()):
            return
        with self._lock:
            if own in self._waiting and not own.leads:
                self._waiting.remove(own)
                raise NotStartedError
            if not own.gate.acquire(blocking=False):
                raise CommitUnknownError

    def _lead(self, own: _Waiting[JobT, ResultT]) -> None:
        """Run a batch that begins with this thread's own job, and let the next that waits lead."""
        batch: list[_Waiting[JobT, ResultT]] = []
        # For the others, if an exception from outside ends this thread.
        error: Exception | None = CommitUnknownError()
        try:
            with self._lock:
                batch += [self._waiting.popleft() for _ in range(min(_MAX_BATCH, len(self._waiting)))]
            for each, result in zip(batch, self._execute([each.job for each in batch]), strict=True):
                each.result = result
            error = None
        except Exception as failure:
            error = failure
        finally:
            for each in batch:
                each.error = error
            self._leave(own)
            for each in batch[1:]:
                each.gate.release()

    def _leave(self, own: _Waiting[JobT, ResultT]) -> None:
        """Remove a job that was not started, and let the next that waits lead if this thread led."""
        with self._lock:
            if own in self._waiting:
                self._waiting.remove(own)
            if not own.leads:
                return
            own.leads = False
            following = self._waiting[0] if self._waiting else None
            self._is_busy = following is not None
            if following is not None:
                following.leads = True
                following.gate.release()


class KeptConnection:
    """A connection, PostgreSQL's in autocommit, that one thread at a time uses for whole transactions.

    It is not one of the pool's: to take one from the pool costs more processor time than a small statement.
    """

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._driver: Any = None
        self._used_at = time.monotonic()
        self.info: dict[Any, Any] = {}
        self._checked: set[str] = set()

    def execute(self, statement: str, types: Sequence[int], parameters: Sequence[bytes]) -> list[list[Any]]:
        """Execute one statement on PostgreSQL, which commits itself; return its rows in the text format.

        After an exception the connection is closed, as it may be lost.

        Raises: CommitUnknownError; psycopg.Error; SQLAlchemyError.
        """
        try:
            driver = self.driver_connection
            if statement not in self._checked:
                check_statement(statement)
                self._checked.add(statement)
            try:
                result = PreparedStatements.of(driver, self.info).result(statement, parameters, types)
            except Error as error:
                if driver.pgconn.transaction_status == TransactionStatus.IDLE:
                    raise
                raise CommitUnknownError(str(error)) from error
        except LockNotAvailable:
            raise
        except BaseException:
            self._close()
            raise
        self._used_at = time.monotonic()
        columns = range(result.nfields)
        return [[result.get_value(row, column) for column in columns] for row in range(result.ntuples)]

    def read(self, statement: PreparedRead, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows of a read; after an exception the connection is closed. Raises: the driver's errors."""
        try:
            rows = statement.on(self, db.engine.dialect, parameters)
        except BaseException:
            self._close()
            raise
        self._used_at = time.monotonic()
        return rows

    @contextmanager
    def sqlite_unit(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction on SQLite; after an exception the connection is closed. Raises: sqlite3.Error."""
        try:
            connection = self.driver_connection
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
        except BaseException:
            self._close()
            raise

    @property
    def driver_connection(self) -> Any:
        if self._engine is None:
            self._engine = db.engine
            event.listen(self._engine, "engine_disposed", lambda _engine: self._close())
        is_postgresql = self._engine.dialect.name == "postgresql"
        # A loss that is not noticed here leaves the steps to run alone.
        if (
            self._driver is not None
            and is_postgresql
            and time.monotonic() - self._used_at > pool_liveness.UNCHECKED_IDLE_SECONDS
            and not pool_liveness.is_alive(self._driver, self._used_at)
        ):
            self._close()
        if self._driver is None:
            pooled = self._engine.raw_connection()
            self._driver = pooled.driver_connection
            pooled.detach()
            if is_postgresql:
                self._driver.autocommit = True
        return self._driver

    def _close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
