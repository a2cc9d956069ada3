"""payments: since when they count, after a restore; what the settlement key can still pay for

Revision: 0013; after: 0012
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "payment_horizons",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("drawn_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "payment_supplies",
        sa.Column("chain", sa.String(length=20), nullable=False),
        sa.Column("submissions_left", sa.BigInteger(), nullable=False),
        sa.Column("looked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("chain"),
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("payment_supplies")
    op.drop_table("payment_horizons")
