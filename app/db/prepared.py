"""Statements prepared once: constant SQL that the driver executes itself.

SQLAlchemy's execution of a small statement costs several times what the driver's does. SQL and conversions of values
are SQLAlchemy's, so that the rows are the same.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from sqlalchemy import ClauseElement, Select, bindparam, insert, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError, MultipleResultsFound, NoResultFound
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.schema import ScalarElementColumnDefault

from app.db import libpq
from app.db.libpq import PreparedStatements
from app.db.tables import table_of
from app.db.unit_of_work import ReadOnlySession, UnitError, driver_connection, end_part, is_unit_open, only_reads
from app.extensions import Base

_Conversion = Callable[[Any], Any] | None


class DriverConnection(Protocol):
    """A driver's connection with what is kept for it: one of the pool's, or a `KeptConnection`."""

    @property
    def driver_connection(self) -> Any: ...

    @property
    def info(self) -> MutableMapping[Any, Any]: ...


class PreparedStatement:
    """A statement with a `bindparam` for every value; a unit executes it in its transaction."""

    def __init__(self, statement: ClauseElement) -> None:
        self._statement = statement
        self._compiled: dict[str, _CompiledStatement] = {}

    def execute(self, session: Session, parameters: Mapping[str, Any]) -> int:
        """Return the number of rows that matched. Raises: what `Session.execute` raises."""
        _, count = self._execute_in_transaction(session, parameters)
        return count

    def all(self, session: Session, parameters: Mapping[str, Any]) -> Sequence[Any]:
        rows, _ = self._execute_in_transaction(session, parameters)
        return rows

    def one(self, session: Session, parameters: Mapping[str, Any]) -> Any:
        """Return the only row. Raises: NoResultFound, MultipleResultsFound."""
        row = self.one_or_none(session, parameters)
        if row is None:
            raise NoResultFound
        return row

    def one_or_none(self, session: Session, parameters: Mapping[str, Any]) -> Any | None:
        """Return the only row, or None. Raises: MultipleResultsFound."""
        rows = self.all(session, parameters)
        if len(rows) > 1:
            raise MultipleResultsFound
        return rows[0] if rows else None

    def scalar(self, session: Session, parameters: Mapping[str, Any]) -> Any | None:
        """Return the first column of the first row, or None without rows."""
        rows = self.all(session, parameters)
        return rows[0][0] if rows else None

    def _in(self, dialect: Dialect) -> _CompiledStatement:
        compiled = self._compiled.get(dialect.name)
        if compiled is None:
            statement = self._statement_in(dialect)
            compiled = self._compiled[dialect.name] = _CompiledStatement(statement, dialect)
        return compiled

    def _statement_in(self, _dialect: Dialect) -> ClauseElement:
        return self._statement

    def _execute_in_transaction(self, session: Session, parameters: Mapping[str, Any]) -> tuple[Sequence[Any], int]:
        session.flush()
        pooled = session.connection()
        compiled = self._in(pooled.dialect)
        converted = compiled.convert(parameters)
        for check in pooled.engine.dialect.dispatch.do_execute:
            check(None, compiled.sql, converted, None)
        connection: Any = pooled.connection
        try:
            return compiled.execute(connection, converted, in_transaction=True)
        except pooled.dialect.loaded_dbapi.Error as error:
            is_lost = pooled.dialect.is_disconnect(error, connection.driver_connection, None)
            if is_lost:
                pooled.invalidate(error)
            raise compiled.error(error, is_lost=is_lost) from error
        except BaseException as error:
            if not isinstance(error, Exception):  # a response may be half read
                pooled.invalidate(error)
            raise


class PreparedRead(PreparedStatement):
    """A SELECT of columns; a read-only unit executes it on a borrowed connection, without a transaction."""

    def __init__(self, statement: Select[*tuple[Any, ...]]) -> None:
        super().__init__(statement)

    def all(self, session: Session, parameters: Mapping[str, Any]) -> Sequence[Any]:
        if not isinstance(session, ReadOnlySession) or session.in_transaction():
            return super().all(session, parameters)
        if not is_unit_open():
            raise UnitError("the session was used outside a unit of work")
        engine = session.bind
        compiled = self._in(engine.dialect)
        try:
            with driver_connection(engine) as connection:
                rows = self.on(connection, engine.dialect, parameters)
        except engine.dialect.loaded_dbapi.Error as error:
            raise compiled.error(error, is_lost=True) from error
        return rows

    def on(self, pooled: DriverConnection, dialect: Dialect, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Return the rows as they are read on a connection without a transaction. Raises: the driver's errors."""
        compiled = self._in(dialect)
        rows, _ = compiled.execute(pooled, compiled.convert(parameters), in_transaction=False)
        return rows

    def _in(self, dialect: Dialect) -> _CompiledStatement:
        compiled = super()._in(dialect)
        if not only_reads(compiled.sql):
            raise UnitError("a prepared read has constant SQL, and neither writes nor locks rows")
        return compiled


class _Commit(PreparedStatement):
    """COMMIT, which on PostgreSQL begins the next transaction, too."""

    def _statement_in(self, dialect: Dialect) -> ClauseElement:
        return text("COMMIT AND CHAIN") if dialect.name == "postgresql" else self._statement


_COMMIT = _Commit(text("COMMIT"))


def commit_part(session: Session) -> None:
    """Commit what the current unit has done so far; its locks end, and it goes on with the same connection.

    What follows may fail, so that the rest of the unit is rolled back. Raises: CommitUnknownError, UnitError.
    """
    end_part(session, lambda: _COMMIT.execute(session, {}))


class PreparedInsert(PreparedStatement):
    """The INSERT of one row with the columns that the database does not fill; absent values are the defaults.

    With `unique` columns, nothing is inserted if another row has the same values in them. With `adds`, the amounts in
    all columns but the primary key are added to the row with the same key, if there is one. A concurrent unit that
    inserts the same values is awaited, so that the result is final.
    """

    def __init__(
        self, model: type[Base], *, unique: Sequence[InstrumentedAttribute[Any]] = (), adds: bool = False
    ) -> None:
        table = table_of(model)
        given = [each for each in table.columns if each is not table.autoincrement_column]
        columns = [column for column in given if column.default or not column.server_default]
        values: Any = {column: bindparam(column.name) for column in columns}
        super().__init__(insert(table).inline().values(values))
        self._table, self._values, self._unique, self._adds = table, values, unique, adds
        # For a model with authenticated rows: adds their MAC (`app.authenticated`).
        self._stamp: Callable[[Mapping[str, Any]], Mapping[str, Any]] = getattr(model, "stamp", dict)
        self._defaults = {
            column.name: column.default.arg if isinstance(column.default, ScalarElementColumnDefault) else None
            for column in columns
        }

    def execute(self, session: Session, parameters: Mapping[str, Any]) -> int:
        """Insert the row, or add to another; return 1, or 0 if nothing was changed."""
        return super().execute(session, self._stamp({**self._defaults, **parameters}))

    def _statement_in(self, dialect: Dialect) -> ClauseElement:
        if not (self._unique or self._adds):
            return self._statement
        dialects: Any = postgresql if dialect.name == "postgresql" else sqlite
        new = dialects.insert(self._table).inline().values(self._values)
        upsert: ClauseElement = new.on_conflict_do_nothing(index_elements=self._unique)
        if self._adds:
            added = {each.key: each + new.excluded[each.key] for each in self._table.columns if not each.primary_key}
            upsert = new.on_conflict_do_update(index_elements=self._table.primary_key, set_=added)
        return upsert

    def execute_for(self, session: Session, row: Base) -> None:
        """Insert the row that an object has the values of; the session does not get the object."""
        # As a new object it has what was set, and nothing to load.
        values = vars(row)
        self.execute(session, {name: values[name] for name in self._defaults if values.get(name) is not None})


class _CompiledStatement:
    """The statement in one dialect: its SQL, the conversions of parameters and columns, the type of its rows."""

    def __init__(self, statement: ClauseElement, dialect: Dialect) -> None:
        declared = statement.compile(dialect=dialect)
        assert isinstance(declared, SQLCompiler)  # noqa: S101
        if declared.insert_prefetch or declared.update_prefetch:
            raise UnitError("a prepared statement names every column that has a default of Python's")
        required = {name for name, bind in declared.binds.items() if bind.required}
        compiled = declared
        if isinstance(statement, Select):
            # With values of no meaning, because separators and the like are rendered only if every parameter has one.
            rendered = statement.params(dict.fromkeys(required)).compile(
                dialect=dialect, compile_kwargs={"render_postcompile": True}
            )
            assert isinstance(rendered, SQLCompiler)  # noqa: S101
            compiled = rendered
        self.sql = compiled.string
        if dialect.name == "postgresql":
            self.sql, names = libpq.numbered(compiled.string)
        else:
            names = list(compiled.positiontup or ())
        if any(bind.expanding for bind in compiled.binds.values()):
            raise UnitError("a prepared statement has constant SQL")
        self._dialect = dialect
        self._conversions: list[tuple[str, _Conversion]] = [
            (name, compiled.binds[name].type.dialect_impl(dialect).bind_processor(dialect)) for name in names
        ]
        self._constants = {name: bind.value for name, bind in compiled.binds.items() if name not in required}
        self._size = len(compiled.binds)
        columns = getattr(statement, "exported_columns", ())
        self._types = [column.type.dialect_impl(dialect) for column in columns]
        self._columns: list[_Conversion] | None = None
        row_type: Any = namedtuple("Row", tuple(column.key for column in columns), rename=True)  # type: ignore[misc]  # noqa: PYI024
        self._make_row: Callable[..., Any] = row_type._make

    def convert(self, parameters: Mapping[str, Any]) -> Sequence[Any]:
        """Return parameters for the driver. Raises: KeyError for a missing or unknown one."""
        values = {**self._constants, **parameters}
        if len(values) > self._size:
            raise KeyError(*sorted(set(parameters).difference(name for name, _ in self._conversions)))
        return [values[name] if convert is None else convert(values[name]) for name, convert in self._conversions]

    def execute(
        self, pooled: DriverConnection, converted: Sequence[Any], *, in_transaction: bool
    ) -> tuple[Sequence[Any], int]:
        """Return the rows, if the statement has any, and their number, or that of the rows that it matched."""
        driver = pooled.driver_connection
        rows: Sequence[Any]
        types: Sequence[Any]
        if self._dialect.name == "postgresql":
            prepared = PreparedStatements.of(driver, pooled.info)
            rows, types, count = prepared.execute(self.sql, converted, in_transaction=in_transaction)
        else:
            cursor = driver.execute(self.sql, converted)
            rows, count = cursor.fetchall(), cursor.rowcount
            types = [column[1] for column in cursor.description or ()]
        if not self._types:
            return (), count
        if self._columns is None:  # chosen when the driver has named the types of columns
            named = zip(self._types, types, strict=True)
            self._columns = [of.result_processor(self._dialect, column) for of, column in named]
        columns = self._columns
        return [
            self._make_row(
                [value if convert is None else convert(value) for value, convert in zip(row, columns, strict=True)]
            )
            for row in rows
        ], len(rows)

    def error(self, error: Exception, *, is_lost: bool) -> BaseException:
        base = self._dialect.loaded_dbapi.Error
        return DBAPIError.instance(
            self.sql, None, error, base, hide_parameters=True, connection_invalidated=is_lost,
            dialect=self._dialect,
        )  # fmt: skip
