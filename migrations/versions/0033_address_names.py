"""The owner's names of addresses.

Revision: 0033; after: 0032
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "address_names",
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("name", sa.String(60), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.ForeignKeyConstraint(["agent_id"], ["agents.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("agent_id", "chain", "address"),
    )


def downgrade() -> None:
    """Drop the table."""
    op.drop_table("address_names")
