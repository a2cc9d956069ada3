"""A connection that its user keeps: to take one from the pool costs more processor time than a small statement.

It is not one of the pool's: those are left to all other work.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from psycopg import Error
from psycopg.errors import LockNotAvailable
from psycopg.pq import TransactionStatus
from sqlalchemy import event
from sqlalchemy.engine import Engine

from app.db import pool_liveness
from app.db.libpq import PreparedStatements
from app.db.unit_of_work import CommitUnknownError, check_statement
from app.extensions import db


class KeptConnection:
    """A connection, PostgreSQL's in autocommit, that one thread at a time uses for whole transactions."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._driver: Any = None
        self._used_at = time.monotonic()
        self._prepared: PreparedStatements | None = None
        self._checked: set[str] = set()

    def execute(self, statement: str, types: Sequence[int], parameters: Sequence[bytes]) -> list[list[Any]]:
        """Execute one statement on PostgreSQL, which commits itself; return its rows in the text format.

        After an exception the connection is closed, as it may be lost.

        Raises: CommitUnknownError; psycopg.Error; SQLAlchemyError.
        """
        try:
            driver = self._open()
            if statement not in self._checked:
                check_statement(statement)
                self._checked.add(statement)
            if self._prepared is None:
                self._prepared = PreparedStatements(driver)
            try:
                result = self._prepared.result(statement, parameters, types)
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

    @contextmanager
    def sqlite_unit(self) -> Iterator[sqlite3.Connection]:
        """Open a transaction on SQLite; after an exception the connection is closed. Raises: sqlite3.Error."""
        try:
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            yield connection
            connection.commit()
        except BaseException:
            self._close()
            raise

    def _open(self) -> Any:
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
            self._driver, self._prepared = pooled.driver_connection, None
            pooled.detach()
            if is_postgresql:
                self._driver.autocommit = True
        return self._driver

    def _close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()
