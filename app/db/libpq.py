"""Execution of prepared statements by libpq itself: psycopg's cursor costs several times as much processor time.

Values are converted by psycopg. It prepares nothing on these connections (`prepare_threshold`), because after a
rollback it would deallocate everything that is prepared. Without prepared statements (`psycopg.Connection.prepared_max`
is 0), the server parses each statement each time: a pooler may execute it on any of its connections.
"""

import itertools
import re
import secrets
from collections.abc import MutableMapping, Sequence
from contextlib import closing
from typing import Any, Self

from psycopg import Connection, OperationalError
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import DuplicatePreparedStatement, InvalidSqlStatementName, error_from_result
from psycopg.pq import ConnStatus, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult
from sqlalchemy.engine import Engine

_PLACEHOLDER = re.compile(r"%(?:\((\w+)\)s|%)")
_COMPLETED = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK})
_KEY = "prepared_statements"
_TRIES = 5
LOSS_DETECTION: dict[str, Any] = {
    "connect_timeout": 5, "keepalives_idle": 15, "keepalives_interval": 5, "tcp_user_timeout": 30_000
}  # fmt: skip
"""How connections notice that their server has disappeared; TCP itself takes a quarter of an hour."""
_names = itertools.count()


def numbered(sql: str) -> tuple[str, list[str]]:
    """Return a statement with numbers for the names of its parameters, and the names in this order."""
    names: dict[str, int] = {}

    def number(found: re.Match[str]) -> str:
        return f"${names.setdefault(found[1], len(names) + 1)}" if found[1] else "%"

    return _PLACEHOLDER.sub(number, sql), list(names)


class PreparedStatements:
    """The statements that are prepared on one connection. One thread at a time executes them."""

    def __init__(self, connection: Connection[Any]) -> None:
        self.connection = connection
        self._transformer = Transformer(connection)
        # The names by SQL. Types of values are the server's: psycopg's depend on the size of a number.
        self._prepared: dict[str, bytes] = {}

    @classmethod
    def of(cls, connection: Connection[Any], info: MutableMapping[Any, Any]) -> Self:
        """Return those of a connection of the pool, which keeps them in its `info`."""
        found = info.get(_KEY)
        if isinstance(found, cls) and found.connection is connection:
            return found
        made = info[_KEY] = cls(connection)
        return made

    def execute(
        self, sql: str, values: Sequence[Any], *, in_transaction: bool
    ) -> tuple[Sequence[Sequence[Any]], Sequence[int], int]:
        """Execute a statement; return its rows, the types of their columns, and the number of rows that it matched.

        With `in_transaction` it begins one, as psycopg does, if none is open and the connection is not in autocommit.

        Raises: psycopg.Error.
        """
        connection, transformer = self.connection, self._transformer
        pgconn = connection.pgconn
        if in_transaction and not connection.autocommit and pgconn.transaction_status == TransactionStatus.IDLE:
            level = connection.isolation_level
            mode = b"" if level is None else b" ISOLATION LEVEL " + level.name.replace("_", " ").encode()
            _check(pgconn, pgconn.exec_(b"BEGIN" + mode))
        dumped: Any = transformer.dump_sequence(values, [PyFormat.TEXT] * len(values))
        result = self.result(sql, dumped)
        transformer.set_pgresult(result)
        rows = transformer.load_rows(0, result.ntuples, tuple)
        transformer.set_pgresult(None)
        return rows, [result.ftype(column) for column in range(result.nfields)], result.command_tuples or 0

    def result(self, sql: str, values: Sequence[Any], types: Sequence[int] | None = None) -> PGresult:
        """Execute a statement with values in the text format, without a conversion. Raises: psycopg.Error."""
        pgconn = self.connection.pgconn
        if self.connection.prepared_max == 0:
            result = pgconn.exec_params(sql.encode(), values, types)
        else:
            name = self._prepared.get(sql)
            if name is None:
                name = b"purser_%d" % next(_names)
                _check(pgconn, pgconn.prepare(name, sql.encode(), types))
                self._prepared[sql] = name
            result = pgconn.exec_prepared(name, values)
        _check(pgconn, result)
        return result


def keeps_prepared_statements(engine: Engine) -> bool:
    """Try whether connections keep statements: PgBouncer before 1.22 mixes them up. Raises: database errors."""
    name = b"purser_try_%s" % secrets.token_hex(8).encode()
    with closing(engine.raw_connection()) as first, closing(engine.raw_connection()) as second:
        both: list[Any] = [first.driver_connection, second.driver_connection]
        try:
            for connection in both:
                _check(connection.pgconn, connection.pgconn.prepare(name, b"SELECT 1"))
            # By chance, one try may have the connection of its statement.
            for connection in both * _TRIES:
                _check(connection.pgconn, connection.pgconn.exec_prepared(name, ()))
        except (DuplicatePreparedStatement, InvalidSqlStatementName):
            return False
        finally:
            for connection in both:
                connection.pgconn.exec_(b"DEALLOCATE " + name)
    return True


def _check(pgconn: Any, result: Any) -> None:
    if result.status in _COMPLETED:
        return
    if pgconn.status != ConnStatus.OK:
        raise OperationalError(result.get_error_message())
    raise error_from_result(result)
