"""service_purchases, pinned_payees, spending_sessions: payments to web services, and budgets for one task

Revision: 0017; after: 0016
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "service_purchases",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("host", sa.String(253), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("method", sa.String(10), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("network", sa.String(100), nullable=False),
        sa.Column("answer_sealed", sa.Text(), nullable=True),
        sa.Column("answered_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_service_purchases_wallet_id", "service_purchases", ["wallet_id", "created_at"])
    answered = sa.text("answer_sealed IS NOT NULL")
    op.create_index(
        "ix_service_purchases_answered",
        "service_purchases",
        ["answered_at"],
        postgresql_where=answered,
        sqlite_where=answered,
    )
    op.create_table(
        "pinned_payees",
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("host", sa.String(253), nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("address", sa.String(64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("wallet_id", "host", "chain"),
    )
    op.create_table(
        "spending_sessions",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("max_nanos", sa.BigInteger(), nullable=False),
        sa.Column("counted_nanos", sa.BigInteger(), nullable=False),
        sa.Column("domains", sa.JSON(), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.CheckConstraint("max_nanos >= 0 AND counted_nanos >= 0", name="ck_spending_sessions_sums"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_spending_sessions_wallet_id", "spending_sessions", ["wallet_id", "created_at"])
    op.create_index("ix_spending_sessions_expires_at", "spending_sessions", ["expires_at"])
    op.add_column("spending_holds", sa.Column("session_id", sa.Uuid(as_uuid=False), nullable=True))


def downgrade() -> None:
    """Drop the tables. Payments stay in the history of their wallets."""
    op.drop_column("spending_holds", "session_id")
    op.drop_table("spending_sessions")
    op.drop_table("pinned_payees")
    op.drop_table("service_purchases")
