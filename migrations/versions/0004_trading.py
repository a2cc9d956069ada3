"""trading

Revision: 0004; after: 0002
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "exchange_budgets",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("whole_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    with op.batch_alter_table("exchange_budgets", schema=None) as batch_op:
        batch_op.create_index("ix_exchange_budgets_whole_at_ms", ["whole_at_ms"], unique=False)

    op.create_table(
        "exchange_markets",
        sa.Column("exchange", sa.String(length=20), nullable=False),
        sa.Column("markets", sa.JSON(), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("exchange"),
    )


def downgrade() -> None:
    """Go back."""
    op.drop_table("exchange_markets")
    with op.batch_alter_table("exchange_budgets", schema=None) as batch_op:
        batch_op.drop_index("ix_exchange_budgets_whole_at_ms")

    op.drop_table("exchange_budgets")
