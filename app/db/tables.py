"""Columns, pages and statements that features share.

Column types are exact on both databases: instants in UTC, token units of up to 256 bits. Core statements on the tables
of models, for hot paths, are built once, of the table's columns and `bindparam`: this saves the construction and the
ORM's work at each execution, which are most of the cost of a small statement.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import InstrumentedAttribute, Session
from sqlalchemy.schema import Table
from sqlalchemy.types import TypeDecorator, TypeEngine

from app.core.pagination import Page, PageRequest
from app.errors import InvalidInput
from app.extensions import Base

ID = sa.Uuid(as_uuid=False)
"""A UUID, as text in Python: native on PostgreSQL, 32 characters on SQLite."""

SERIAL = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""A number that the database assigns: only an INTEGER does so on SQLite."""


def partial_index(name: str, *columns: Any, where: str, unique: bool = False) -> sa.Index:
    condition = sa.text(where)
    return sa.Index(name, *columns, unique=unique, postgresql_where=condition, sqlite_where=condition)


class UtcDateTime(TypeDecorator[datetime]):
    """An aware instant; SQLite, which has no time zones, stores it as naive UTC."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to UTC. Raises: ValueError for a naive instant, which depends on the machine's time zone."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("an instant needs a time zone")
        value = value.astimezone(UTC)
        return value.replace(tzinfo=None) if dialect.name == "sqlite" else value

    def process_result_value(self, value: datetime | None, _dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Units(TypeDecorator[int]):
    """A token amount in base units: NUMERIC(78, 0) on PostgreSQL, text on SQLite, where NUMERIC loses digits."""

    impl = sa.Numeric(78, 0)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(sa.String(80) if dialect.name == "sqlite" else sa.Numeric(78, 0))

    def process_bind_param(self, value: int | None, dialect: Dialect) -> Any:
        return str(value) if value is not None and dialect.name == "sqlite" else value

    def process_result_value(self, value: Any, _dialect: Dialect) -> int | None:
        return None if value is None else int(value)


def table_of(model: type[Base]) -> Table:
    return cast("Table", model.__table__)


def insert_into(session: Session, model: type[Base]) -> Any:
    """Return an INSERT that may have an ON CONFLICT clause, in the dialect of the database."""
    is_postgresql = session.get_bind().dialect.name == "postgresql"
    return (postgresql.insert if is_postgresql else sqlite.insert)(model)


def update_rows(session: Session, model: Any, *conditions: sa.ColumnElement[bool], **values: Any) -> int:
    """Update the rows that meet all conditions; return how many. Objects that the session has loaded keep theirs."""
    return _matching(session, sa.update(model).where(*conditions).values(values))


def delete_rows(session: Session, model: Any, *conditions: sa.ColumnElement[bool]) -> int:
    """Delete the rows that meet all conditions; return how many. The session keeps the objects that it has loaded."""
    return _matching(session, sa.delete(model).where(*conditions))


def _matching(session: Session, statement: Any) -> int:
    result: Any = session.execute(statement, execution_options={"synchronize_session": False})
    return int(result.rowcount)


def count(session: Session, model: type[Base], *conditions: sa.ColumnElement[bool]) -> int:
    return session.scalar(sa.select(sa.func.count()).select_from(model).where(*conditions)) or 0


def sums(session: Session, *columns: Any, where: Sequence[sa.ColumnElement[bool]]) -> list[int]:
    """Return the sums of columns over the rows that meet all conditions; 0 without rows."""
    found = session.execute(sa.select(*map(sa.func.sum, columns)).where(*where)).one()
    return [int(each or 0) for each in found]


def having(model: Any, values: Mapping[str, Any]) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of rows with these values of columns; None means any."""
    return [getattr(model, name) == value for name, value in values.items() if value is not None]


def page_of(
    session: Session, model: Any, page: PageRequest, *conditions: sa.ColumnElement[bool], newest_first: bool = False,
    **values: Any,
) -> Page[Any]:  # fmt: skip
    """Return a page of the rows that meet all conditions and have these values (`having`), oldest first by default.

    It is found in the index of `created_at` and `id` only, however deep it is; then its few rows are read.
    """
    conditions = (*conditions, *having(model, values), *within(table_of(model), page))
    total = count(session, model, *conditions)
    later, shown = after_entry(session, table_of(model), page, total, *conditions, newest_first=newest_first)
    order = [each.desc() if newest_first else each for each in (model.created_at, model.id)]
    ids = (
        sa.select(model.id).where(*conditions, *later).order_by(*order).limit(page.limit).offset(page.offset).subquery()
    )
    rows = session.scalars(sa.select(model).join(ids, ids.c.id == model.id).order_by(*order)).all()
    return Page(rows, total, shown)


def after_entry(
    session: Session, table: Table, page: PageRequest, total: int, *conditions: sa.ColumnElement[bool],
    newest_first: bool = True,
) -> tuple[list[sa.ColumnElement[bool]], PageRequest]:  # fmt: skip
    """Return what else is true of rows after the entry `page.after`, if any, and the page with its offset in the list.

    Raises: InvalidInput if the entry is not among the `total` rows that meet the conditions.
    """
    if page.after is None:
        return [], page
    columns = (table.c.created_at, table.c.id)
    row = session.execute(sa.select(*columns).where(table.c.id == page.after, *conditions)).first()
    if row is None:
        raise InvalidInput.field("after", "is not the id of an entry of this list")
    key, found = sa.tuple_(*columns), sa.tuple_(*map(sa.literal, row, (each.type for each in columns)))
    follows = key < found if newest_first else key > found
    remaining = session.scalar(sa.select(sa.func.count()).select_from(table).where(*conditions, follows)) or 0
    return [follows], replace(page, offset=total - remaining)


def within(table: Table, page: PageRequest) -> list[sa.ColumnElement[bool]]:
    """Return the conditions of the time in which the rows of a page were created."""
    conditions = []
    if page.created_after is not None:
        conditions.append(table.c.created_at >= page.created_after)
    if page.created_before is not None:
        conditions.append(table.c.created_at < page.created_before)
    return conditions


def add_amounts(session: Session, table: Table, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add amounts to many rows; each given row has the key columns and the amounts by column.

    On PostgreSQL they are one statement: many would hold the locks of the first rows while the others run. Another one
    locks the rows before, in the order of their keys; an UPDATE would lock them in an order of the planner's choice.
    """
    if not rows:
        return
    amounts = [name for name in rows[0] if name not in keys]
    if session.get_bind().dialect.name == "postgresql":
        names = [*keys, *amounts]
        arrays = [sa.bindparam(None, [row[name] for row in rows], type_=sa.ARRAY(table.c[name].type)) for name in names]
        column_amounts = sa.func.unnest(*arrays).table_valued(
            *(sa.column(name, table.c[name].type) for name in names), name="more"
        ).render_derived()  # fmt: skip
        matches = sa.and_(*(table.c[name] == column_amounts.c[name] for name in keys))
        ordered = sa.select(*(table.c[name] for name in keys)).join(column_amounts, matches).order_by(*keys)
        session.execute(ordered.with_for_update(of=table, key_share=True))
        sums = {table.c[name]: table.c[name] + column_amounts.c[name] for name in amounts}
        session.execute(sa.update(table).where(matches).values(sums))
        return
    statement = (
        sa.update(table)
        .where(sa.and_(*(table.c[name] == sa.bindparam(f"of_{name}") for name in keys)))
        .values({table.c[name]: table.c[name] + sa.bindparam(f"of_{name}") for name in amounts})
    )
    session.connection().execute(statement, [{f"of_{name}": value for name, value in row.items()} for row in rows])


def in_list(session: Session, of: Any, values: Sequence[Any]) -> sa.ColumnElement[bool]:
    """Return the condition of many values: on PostgreSQL one parameter, because compiling thousands takes longer."""
    if session.get_bind().dialect.name != "postgresql":
        return sa.and_(of.in_(values))
    return sa.and_(of == sa.func.any(sa.bindparam(None, list(values), type_=sa.ARRAY(of.type))))


def utc_day(instant: InstrumentedAttribute[Any], *, dialect: str) -> sa.ColumnElement[Any]:
    """Return the UTC day of an instant's column; read what comes out with `day_of`."""
    if dialect == "sqlite":
        return sa.func.date(instant)
    # date() uses the session's time zone, which an operator may have set.
    return sa.func.date(sa.func.timezone("UTC", instant))


def rows_after(session: Session, table: Table, columns: Any, last: Any, *conditions: Any, limit: int) -> Sequence[Any]:
    """Return the next rows after another one, in the order of their keys."""
    keys = list(table.primary_key)
    if last is not None:
        of_last = sa.tuple_(*(getattr(last, each.key) for each in keys), types=[each.type for each in keys])
        conditions = (*conditions, sa.tuple_(*keys) > of_last)
    return session.execute(sa.select(*columns).where(*conditions).order_by(*keys).limit(limit)).all()


def day_of(value: Any) -> date:
    """Read a day as a database returns it: SQLite has no dates."""
    return value if isinstance(value, date) else date.fromisoformat(str(value))
