"""Payouts of services' earnings, and what the treasury holds.

Revision: 0039; after: 0038
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "service_payouts",
        sa.Column("id", sa.Uuid(as_uuid=False), primary_key=True),
        sa.Column("service_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("kind", sa.String(6), nullable=False),
        sa.Column("status", sa.String(7), nullable=False),
        sa.Column("amount_nanos", sa.BigInteger(), nullable=False),
        sa.Column("commission_nanos", sa.BigInteger(), nullable=False),
        sa.Column("chain", sa.String(20), nullable=True),
        sa.Column("recipient", sa.String(64), nullable=True),
        sa.Column("call_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("amount_nanos > 0 AND commission_nanos >= 0", name="ck_service_payouts_amounts"),
        sa.CheckConstraint("kind IN ('payout', 'refund')", name="ck_service_payouts_kind"),
        sa.CheckConstraint("status IN ('pending', 'paid', 'failed')", name="ck_service_payouts_status"),
    )
    op.create_index("ix_service_payouts_service_id", "service_payouts", ["service_id", "created_at", "id"])
    op.create_index("ix_service_payouts_created_at", "service_payouts", ["created_at", "id"])
    counts = sa.text("status <> 'failed'")
    op.create_index(
        "uq_service_payouts_call", "service_payouts", ["call_id"], unique=True,
        postgresql_where=counts, sqlite_where=counts,
    )  # fmt: skip
    is_open = sa.text("closed_at IS NULL")
    op.create_index(
        "ix_service_payouts_open", "service_payouts", ["chain"], postgresql_where=is_open, sqlite_where=is_open
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("service_payouts")
