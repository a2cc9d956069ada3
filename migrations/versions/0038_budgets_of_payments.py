"""The shared budgets that count a payment.

Revision: 0038; after: 0037
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, and an index of the payments that have it."""
    op.add_column("spending_holds", sa.Column("budgets", sa.JSON(), nullable=True))
    condition = sa.text("budgets IS NOT NULL")
    op.create_index(
        "ix_spending_holds_budgets", "spending_holds", ["created_at"],
        postgresql_where=condition, sqlite_where=condition,
    )  # fmt: skip


def downgrade() -> None:
    """Drop both."""
    op.drop_index("ix_spending_holds_budgets", "spending_holds")
    op.drop_column("spending_holds", "budgets")
