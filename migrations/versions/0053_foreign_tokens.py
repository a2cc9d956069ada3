"""Currencies of movements that are the contract of a token, with its decimals.

Revision: 0053; after: 0052
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0053"
down_revision = "0052"
branch_labels = None
depends_on = None

_TABLES = ("transactions", "signing_intents")


def upgrade() -> None:
    """Make room for 50 characters."""
    _alter(sa.String(50))


def downgrade() -> None:
    """Restore the limit of 10; fails while a movement of a foreign token is stored."""
    _alter(sa.String(10))


def _alter(kind: sa.String) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute(f"LOCK TABLE {', '.join(_TABLES)} IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
    for table in _TABLES:
        with op.batch_alter_table(table) as batch:
            batch.alter_column("currency", type_=kind, existing_nullable=False)
