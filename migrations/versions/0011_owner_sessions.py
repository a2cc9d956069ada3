"""owner sessions

Revision: 0011; after: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "owner_sessions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("digest", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    with op.batch_alter_table("owner_sessions", schema=None) as batch_op:
        batch_op.create_index("ix_owner_sessions_expires_at", ["expires_at"], unique=False)

    op.create_table(
        "owner_session_keys",
        sa.Column("session_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("owner_key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.ForeignKeyConstraint(["owner_key_id"], ["owner_keys.id"], ondelete="CASCADE"),
        sa.ForeignKeyConstraint(["session_id"], ["owner_sessions.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("session_id", "owner_key_id"),
    )
    with op.batch_alter_table("owner_session_keys", schema=None) as batch_op:
        batch_op.create_index("ix_owner_session_keys_owner_key_id", ["owner_key_id"], unique=False)


def downgrade() -> None:
    """Go back."""
    with op.batch_alter_table("owner_session_keys", schema=None) as batch_op:
        batch_op.drop_index("ix_owner_session_keys_owner_key_id")

    op.drop_table("owner_session_keys")
    with op.batch_alter_table("owner_sessions", schema=None) as batch_op:
        batch_op.drop_index("ix_owner_sessions_expires_at")

    op.drop_table("owner_sessions")
