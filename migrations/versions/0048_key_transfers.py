"""Wallets' keys that owners take out or bring in.

Revision: 0048; after: 0047
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0048"
down_revision = "0047"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table, and mark wallets whose keys others may have."""
    _lock()
    op.add_column("wallets", sa.Column("exported_at", sa.DateTime(timezone=True), nullable=True))
    op.create_table(
        "key_transfers",
        sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True),
        sa.Column("owner_key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=True, unique=True),
        sa.Column("key_sealed", sa.Text(), nullable=True),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.ForeignKeyConstraint(["owner_key_id"], ["owner_keys.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["wallet_id"], ["wallets.id"], ondelete="CASCADE"),
    )
    op.create_index("ix_key_transfers_owner_key_id", "key_transfers", ["owner_key_id"])


def downgrade() -> None:
    """Drop both."""
    _lock()
    op.drop_table("key_transfers")
    op.drop_column("wallets", "exported_at")


def _lock() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL statement_timeout = '2s'")
        op.execute("LOCK TABLE owner_keys, wallets IN ACCESS EXCLUSIVE MODE")
        op.execute("SET LOCAL statement_timeout = 0")
