"""Rotation of encryption keys: every sealed column is sealed again under the current key, while the service works.

By convention a sealed secret lives in a column named `sealed` or `…_sealed` of a table with one primary-key column,
and its place is (table, column, key). The update is conditional on the old text, so that a writer is never undone.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Column, Table, not_, select, update

from app.core.unit_of_work import unit_of_work
from app.extensions import db
from app.ports.vault import Place, Vault


def sealed_columns() -> Iterator[tuple[Table, Column[str]]]:
    """Yield every column that holds sealed secrets."""
    for table in db.metadata.sorted_tables:
        for column in table.columns:
            if column.name == "sealed" or column.name.endswith("_sealed"):
                yield table, column


def rotate(vault: Vault, *, batch: int) -> int:
    """Seal again what older keys sealed, in units of `batch` rows; return how many. Raises: Rejected."""
    return sum(_rotate_column(vault, table, column, batch) for table, column in sealed_columns())


def _rotate_column(vault: Vault, table: Table, column: Column[str], batch: int) -> int:
    (key,) = table.primary_key.columns
    done, last = 0, None
    while True:
        with unit_of_work() as session:
            wanted = select(key, column).where(
                column.is_not(None), not_(column.startswith(f"{vault.current_key_id}.", autoescape=True))
            )
            if last is not None:
                wanted = wanted.where(key > last)
            rows = session.execute(wanted.order_by(key).limit(batch)).all()
            for row_id, sealed in rows:
                place = Place(table.name, column.name, row_id)
                again = vault.seal(vault.open(sealed, place), place)
                session.execute(
                    update(table).where(key == row_id, column == sealed).values({column.name: again})
                )
                done += 1
        if len(rows) < batch:
            return done
        last = rows[-1][0]
