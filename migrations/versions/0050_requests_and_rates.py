"""The rate of requests of one agent, and indexes of what one request did.

Revision: 0050; after: 0049
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0050"
down_revision = "0049"
branch_labels = None
depends_on = None

_TABLES = ("transactions", "payments", "audit_entries")


def upgrade() -> None:
    """Build the indexes while others write, then add the column: what was interrupted is done again as a whole."""
    with _concurrently() as options:
        for table in _TABLES:
            op.drop_index(f"ix_{table}_request_id", table, if_exists=True, **options)
            where = sa.text("request_id IS NOT NULL")
            op.create_index(
                f"ix_{table}_request_id", table, ["request_id"], postgresql_where=where, sqlite_where=where, **options
            )
    op.add_column("agents", sa.Column("requests_per_minute", sa.Integer(), nullable=True))


def downgrade() -> None:
    """Drop them."""
    with _concurrently() as options:
        for table in _TABLES:
            op.drop_index(f"ix_{table}_request_id", table, if_exists=True, **options)
    op.drop_column("agents", "requests_per_minute")


@contextmanager
def _concurrently() -> Iterator[dict[str, Any]]:
    """Leave the transaction on PostgreSQL: only outside of one is an index built without a lock on its table."""
    if op.get_context().dialect.name != "postgresql":
        yield {}
        return
    # Alembic's own block needs a connection of the pool, which that of migrations is not.
    connection: Any = op.get_bind().connection.dbapi_connection
    connection.commit()
    connection.autocommit = True
    try:
        yield {"postgresql_concurrently": True}
    finally:
        connection.autocommit = False
