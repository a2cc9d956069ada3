"""Rotation of encryption keys: every sealed column is sealed again under the current key, while the service runs.

By convention a sealed secret lives in a column named `sealed` or `…_sealed` of a table with one primary-key column,
and its location is (table, column, key). The update is conditional on the old text, so no concurrent write is lost.
"""

from collections.abc import Iterator

from sqlalchemy import Column, Table, not_, select, update

from app import authenticated
from app.db.unit_of_work import unit_of_work
from app.extensions import db
from app.ports.vault import SecretLocation, Vault


def sealed_columns() -> Iterator[tuple[Table, Column[str]]]:
    for table in db.metadata.sorted_tables:
        for column in table.columns:
            if column.name == "sealed" or column.name.endswith("_sealed"):
                yield table, column


def reseal_all(vault: Vault, *, batch: int) -> int:
    """Reseal what older keys have sealed, in units of `batch` rows; return how many.

    The same for the MACs of authenticated rows. Raises: Rejected, RowChanged.
    """
    secrets = sum(_reseal_column(vault, table, column, batch) for table, column in sealed_columns())
    return secrets + authenticated.restamp_all(accepts_changed=False, batch=batch)


def _reseal_column(vault: Vault, table: Table, column: Column[str], batch: int) -> int:
    (key,) = table.primary_key.columns
    done, last_id = 0, None
    while True:
        with unit_of_work() as session:
            batch_query = select(key, column).where(
                column.is_not(None), not_(column.startswith(f"{vault.current_key_id}.", autoescape=True))
            )
            if last_id is not None:
                batch_query = batch_query.where(key > last_id)
            rows = session.execute(batch_query.order_by(key).limit(batch)).all()
            for row_id, sealed in rows:
                location = SecretLocation(table.name, column.name, row_id)
                resealed = vault.seal(vault.open(sealed, location), location)
                session.execute(update(table).where(key == row_id, column == sealed).values({column.name: resealed}))
                done += 1
        if len(rows) < batch:
            return done
        last_id = rows[-1][0]
