"""Use cases for seals: of an upgrade's rows, of rows that an operator has checked, and of all after a key's rotation.

By convention a sealed secret lives in a column named `sealed` or `…_sealed` of a table with one primary-key column,
and its location is (table, column, key). It is sealed again while the service runs: the update is conditional on the
old text, so no concurrent write is lost.
"""

from collections.abc import Iterator

from sqlalchemy import Column, Table, not_, update

from app import authenticated
from app.audit_log import trail
from app.audit_log.actors import Actor
from app.audit_log.trail import AuditAction
from app.db.tables import rows_after
from app.db.unit_of_work import read_only_unit, unit_of_work
from app.extensions import db
from app.ports.vault import SecretLocation, Vault
from app.spending import controls


def seal_permitted() -> int:
    """Seal what the previous version wrote, as long as an upgrade's permit is in force; return how many rows."""
    with read_only_unit() as session:
        if not authenticated.is_permitted(session):
            return 0
    return _accept()


def accept_changed(actor: Actor) -> int:
    """Accept all rows as they are in the database now; return how many had no valid MAC. Recorded first."""
    with read_only_unit() as session:
        changed = authenticated.find_changed(session)
    trail.record_alone(actor, AuditAction.ROWS_ACCEPTED, rows=trail.summarized_list(changed))
    return _accept()


def _accept() -> int:
    with unit_of_work() as session:
        controls.align_versions(session)
    return authenticated.restamp_all(accepts_changed=True)


def sealed_columns() -> Iterator[tuple[Table, Column[str]]]:
    columns = ((table, column) for table in db.metadata.sorted_tables for column in table.columns)
    yield from (each for each in columns if each[1].name == "sealed" or each[1].name.endswith("_sealed"))


def reseal_all(vault: Vault, *, batch: int) -> int:
    """Reseal secrets and MACs of older keys; return how many. Raises: Rejected, RowChanged, KeyServiceUnavailable."""
    secrets = sum(_reseal_column(vault, table, column, batch) for table, column in sealed_columns())
    return secrets + authenticated.restamp_all(accepts_changed=False, batch=batch)


def _reseal_column(vault: Vault, table: Table, column: Column[str], batch: int) -> int:
    (key,) = table.primary_key.columns
    done, last = 0, None
    while True:
        with read_only_unit() as session:
            is_old = not_(column.startswith(f"{vault.sealing_key_id(table.name)}.", autoescape=True))
            rows = rows_after(session, table, (key, column), last, column.is_not(None), is_old, limit=batch)
        for row_id, sealed in rows:
            location = SecretLocation(table.name, column.name, row_id)
            resealed = {column.name: vault.seal(vault.open(sealed, location), location)}
            with unit_of_work() as session:
                session.execute(update(table).where(key == row_id, column == sealed).values(resealed))
        done += len(rows)
        if len(rows) < batch:
            return done
        last = rows[-1]
