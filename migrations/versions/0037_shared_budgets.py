"""Budgets over several agents, keys and wallets.

Revision: 0037; after: 0036
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, and mark what they count."""
    op.create_table(
        "budgets",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(100), nullable=False),
        sa.Column("parent_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("limit_nanos", sa.BigInteger(), nullable=True),
        sa.Column("period", sa.String(5), nullable=False),
        sa.Column("members", sa.JSON(), nullable=False),
        sa.Column("velocity_payments", sa.Integer(), nullable=True),
        sa.Column("velocity_nanos", sa.BigInteger(), nullable=True),
        sa.Column("velocity_minutes", sa.Integer(), nullable=True),
        sa.Column("used_nanos", sa.BigInteger(), nullable=False),
        sa.Column("window_start", sa.DateTime(timezone=True), nullable=False),
        sa.Column("announced_percent", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("mac", sa.String(80), nullable=True),
        sa.CheckConstraint("period IN ('day', 'week', 'month', 'total')", name="ck_budgets_period"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "budget_members",
        sa.Column("member_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("budget_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.PrimaryKeyConstraint("member_id", "budget_id"),
    )
    serial = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "budget_returns",
        sa.Column("id", serial, autoincrement=True, nullable=False),
        sa.Column("budget_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("nanos", sa.BigInteger(), nullable=False),
        sa.Column("held_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_budget_returns_budget_id", "budget_returns", ["budget_id"])
    op.add_column(
        "credit_accounts", sa.Column("has_budgets", sa.Boolean(), nullable=False, server_default=sa.false())
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_column("credit_accounts", "has_budgets")
    for name in ("budget_returns", "budget_members", "budgets"):
        op.drop_table(name)
