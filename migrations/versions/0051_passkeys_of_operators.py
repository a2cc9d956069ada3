"""Passkeys of master keys: a passkey belongs to an owner key or a master key.

Revision: 0051; after: 0050
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0051"
down_revision = "0050"
branch_labels = None
depends_on = None

_TABLE, _OWNERS = "owner_passkeys", "owner_keys"
# As PostgreSQL names it; SQLite keeps no name.
_NAME, _NAMES = f"{_TABLE}_owner_key_id_fkey", {"fk": "%(table_name)s_%(column_0_name)s_fkey"}


def upgrade() -> None:
    """Let the column name a master key, too."""
    _lock()
    with op.batch_alter_table(_TABLE, naming_convention=_NAMES) as batch:
        batch.drop_constraint(_NAME, type_="foreignkey")


def downgrade() -> None:
    """Delete the passkeys of master keys, and let the column name owner keys only."""
    _lock()
    passkeys, owners = (sa.table(name, sa.column("id"), sa.column("owner_key_id")) for name in (_TABLE, _OWNERS))
    op.execute(sa.delete(passkeys).where(passkeys.c.owner_key_id.not_in(sa.select(owners.c.id))))
    with op.batch_alter_table(_TABLE) as batch:
        batch.create_foreign_key(_NAME, _OWNERS, ["owner_key_id"], ["id"], ondelete="CASCADE")


def _lock() -> None:
    """Lock both tables in one statement."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute(f"LOCK TABLE {_TABLE}, {_OWNERS} IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
