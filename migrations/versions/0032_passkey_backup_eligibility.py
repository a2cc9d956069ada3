"""owner_passkeys.backup_eligible: whether a passkey may be copied to other devices, which it says once and for all

Revision: 0032; after: 0031
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; null for passkeys that have not been used since."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.add_column("owner_passkeys", sa.Column("backup_eligible", sa.Boolean, nullable=True))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("owner_passkeys", "backup_eligible")
