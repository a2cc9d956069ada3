"""Codes by which owners recover an agent or hand it over.

Revision: 0046; after: 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "owner_codes",
        sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True),
        sa.Column("owner_key_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("kind", sa.String(13), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False, unique=True),
        sa.Column("valid_from", sa.DateTime(timezone=True), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.ForeignKeyConstraint(["owner_key_id"], ["owner_keys.id"], ondelete="CASCADE"),
    )
    op.create_index("ix_owner_codes_owner_key_id", "owner_codes", ["owner_key_id"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("owner_codes")
