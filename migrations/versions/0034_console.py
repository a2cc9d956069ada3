"""The operator's console: sessions, and services that an operator paused.

Revision: 0034; after: 0033
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and the column."""
    op.create_table(
        "console_sessions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("master_key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("role", sa.String(10), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.ForeignKeyConstraint(["master_key_id"], ["master_keys.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_index("ix_console_sessions_expires_at", "console_sessions", ["expires_at"])
    op.add_column("services", sa.Column("suspended_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Drop the table and the column."""
    op.drop_column("services", "suspended_at")
    op.drop_table("console_sessions")
