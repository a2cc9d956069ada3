"""Sealed keys of wallets of any length: those of a key service contain a data key.

Revision: 0047; after: 0046
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0047"
down_revision = "0046"
branch_labels = None
depends_on = None

_TABLES = ("retired_keys", "wallet_keys")


def upgrade() -> None:
    """Lift the limit of 200 characters."""
    _alter(sa.Text())


def downgrade() -> None:
    """Restore it; fails while a key service has sealed a key."""
    _alter(sa.String(200))


def _alter(kind: sa.types.TypeEngine[str]) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute(f"LOCK TABLE {', '.join(_TABLES)} IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
    for table in _TABLES:
        with op.batch_alter_table(table) as batch:
            batch.alter_column("sealed", type_=kind, existing_nullable=False)
