"""No tables of the exchange: its limit is counted with the other limits, and each process keeps its markets.

Revision: 0049; after: 0045
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0049"
down_revision = "0045"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop them."""
    op.drop_table("exchange_markets")
    op.drop_table("exchange_budgets")


def downgrade() -> None:
    """Make them again; they are filled by use."""
    op.create_table(
        "exchange_budgets",
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("whole_at_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("ix_exchange_budgets_whole_at_ms", "exchange_budgets", ["whole_at_ms"])
    op.create_table(
        "exchange_markets",
        sa.Column("exchange", sa.String(length=20), nullable=False),
        sa.Column("markets", sa.JSON(), nullable=False),
        sa.Column("read_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("exchange"),
    )
