"""open_payments and settlement_risks: one open payment per payer and request, and what failed submissions cost

Revision: 0030; after: 0029
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both. The release before writes neither: what it submits meanwhile is bounded as it was."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.create_table(
        "open_payments",
        sa.Column("payer", sa.String(64), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("payment_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.PrimaryKeyConstraint("payer", "fingerprint"),
    )
    op.create_table(
        "settlement_risks",
        sa.Column("payment_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("payer", sa.String(64), nullable=False),
        sa.Column("claim", sa.String(160), nullable=False),
        sa.Column("risky", sa.Boolean(), nullable=False),
        sa.Column("failed", sa.Boolean(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("cost_nanos >= 0", name="ck_settlement_risks_cost"),
        sa.PrimaryKeyConstraint("payment_id"),
    )
    op.create_index("ix_settlement_risks_payer", "settlement_risks", ["payer", "created_at"])
    op.create_index("ix_settlement_risks_chain", "settlement_risks", ["chain", "created_at"])


def downgrade() -> None:
    """Drop both. What failed submissions cost on the last day is forgotten."""
    op.drop_table("settlement_risks")
    op.drop_table("open_payments")
