"""Refunds of payments that no seller has earned, which have no service and no agent, payments by time, and top-ups by account.

Revision: 0052; after: 0051
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0052"
down_revision = "0051"
branch_labels = None
depends_on = None

_TABLE = "service_payouts"
_INDEXES = (
    ("ix_payments_created_at", "payments", ["created_at", "id"]),
    ("ix_topups_account_id", "topups", ["account_id"]),
)


def upgrade() -> None:
    """Build the indexes while others write, then let the columns be empty: what was interrupted is done again."""
    with _concurrently() as options:
        for name, table, columns in _INDEXES:
            op.drop_index(name, table, if_exists=True, **options)
            op.create_index(name, table, columns, **options)
    _alter(nullable=True)


def downgrade() -> None:
    """Delete these refunds, and require both columns."""
    payouts = sa.table(_TABLE, sa.column("service_id"))
    op.execute(sa.delete(payouts).where(payouts.c.service_id.is_(None)))
    _alter(nullable=False)
    with _concurrently() as options:
        for name, table, _ in _INDEXES:
            op.drop_index(name, table, if_exists=True, **options)


def _alter(*, nullable: bool) -> None:
    with op.batch_alter_table(_TABLE) as batch:
        for name in ("service_id", "agent_id"):
            batch.alter_column(name, existing_type=sa.Uuid(as_uuid=False), nullable=nullable)


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
