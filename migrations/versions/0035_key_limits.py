"""Further keys of an agent: what each may spend from its account, and on what.

Revision: 0035; after: 0034
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "key_limits",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(100), nullable=True),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("limit_nanos", sa.BigInteger(), nullable=True),
        sa.Column("period", sa.String(5), nullable=False),
        sa.Column("models", sa.JSON(), nullable=False),
        sa.Column("requests_per_minute", sa.Integer(), nullable=True),
        sa.Column("tokens_per_minute", sa.Integer(), nullable=True),
        sa.Column("used_nanos", sa.BigInteger(), nullable=False),
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("announced_percent", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.CheckConstraint("period IN ('day', 'week', 'month', 'total')", name="ck_key_limits_period"),
        sa.ForeignKeyConstraint(["id"], ["api_keys.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_key_limits_account_id", "key_limits", ["account_id"])


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("key_limits")
