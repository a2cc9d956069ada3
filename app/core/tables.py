"""The tables beneath the models, for statements that every request asks.

Such a statement is made once, of the table's columns and `bindparam`: SQLAlchemy then neither builds it nor adds the
ORM's work at each execution, which together are most of what a small statement costs.
"""

from __future__ import annotations

from typing import cast

from sqlalchemy import Table

from app.extensions import Base


def table_of(model: type[Base]) -> Table:
    """Return the table of a model."""
    return cast("Table", model.__table__)
