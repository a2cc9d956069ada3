"""price_lists: the last list of prices that was accepted, and why a later one was refused

Revision: 0029; after: 0028
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table; without a row the bundled prices are used."""
    op.create_table(
        "price_lists",
        sa.Column("kind", sa.String(10), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("content", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("kind"),
    )


def downgrade() -> None:
    """Drop the table. The release before uses the bundled prices."""
    op.drop_table("price_lists")
