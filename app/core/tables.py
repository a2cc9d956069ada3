"""The tables beneath the models, for statements that every request asks.

Such a statement is made once, of the table's columns and `bindparam`: SQLAlchemy then neither builds it nor adds the
ORM's work at each execution, which together are most of what a small statement costs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from sqlalchemy import ARRAY, ColumnElement, Table, and_, bindparam, column, func, update
from sqlalchemy.orm import InstrumentedAttribute

from app.extensions import Base, db


def table_of(model: type[Base]) -> Table:
    """Return the table of a model."""
    return cast("Table", model.__table__)


def add_to(table: Table, keys: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
    """Add amounts to many rows, in the current unit; a row given has its key columns and, by column, what is added.

    On PostgreSQL that is one statement: many would hold the locks of the first rows for as long as all of them take.
    """
    if not rows:
        return
    amounts = [name for name in rows[0] if name not in keys]
    if db.session.get_bind().dialect.name == "postgresql":
        names = [*keys, *amounts]
        arrays = [
            bindparam(None, [row[name] for row in rows], type_=ARRAY(table.c[name].type)) for name in names
        ]
        more = func.unnest(*arrays).table_valued(
            *(column(name, table.c[name].type) for name in names), name="more"
        ).render_derived()  # fmt: skip
        db.session.execute(
            update(table)
            .where(and_(*(table.c[name] == more.c[name] for name in keys)))
            .values({table.c[name]: table.c[name] + more.c[name] for name in amounts})
        )
        return
    statement = (
        update(table)
        .where(and_(*(table.c[name] == bindparam(f"of_{name}") for name in keys)))
        .values({table.c[name]: table.c[name] + bindparam(f"of_{name}") for name in amounts})
    )
    db.session.connection().execute(
        statement, [{f"of_{name}": value for name, value in row.items()} for row in rows]
    )


def among(of: InstrumentedAttribute[Any], values: Sequence[Any]) -> ColumnElement[bool]:
    """Return the condition that a column has one of many values.

    On PostgreSQL they are one parameter: making a statement of thousands takes longer than running it, under locks.
    """
    if db.session.get_bind().dialect.name != "postgresql":
        return of.in_(values)
    return of == func.any(bindparam(None, list(values), type_=ARRAY(of.type)))
