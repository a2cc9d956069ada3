"""shopping

Revision: 0008; after: 0007
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward."""
    op.create_table(
        "purchase_events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("purchase_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("purchase_events", schema=None) as batch_op:
        batch_op.create_index("ix_purchase_events_purchase_id", ["purchase_id"], unique=False)

    op.create_table(
        "purchase_evidence",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("purchase_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("name", sa.String(length=40), nullable=False),
        sa.Column("png", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("purchase_evidence", schema=None) as batch_op:
        batch_op.create_index("ix_purchase_evidence_created_at", ["created_at"], unique=False)
        batch_op.create_index("ix_purchase_evidence_purchase_id", ["purchase_id"], unique=False)

    op.create_table(
        "purchase_steps",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("purchase_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("action", sa.String(length=40), nullable=False),
        sa.Column("text", sa.String(length=200), nullable=False),
        sa.Column("path", sa.String(length=200), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("purchase_steps", schema=None) as batch_op:
        batch_op.create_index("ix_purchase_steps_purchase_id", ["purchase_id"], unique=False)

    op.create_table(
        "purchases",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("status", sa.String(length=20), nullable=False),
        sa.Column("url", sa.Text(), nullable=False),
        sa.Column("host", sa.String(length=255), nullable=False),
        sa.Column("quantity", sa.Integer(), nullable=False),
        sa.Column("dry_run", sa.Boolean(), nullable=False),
        sa.Column("max_total_nanos", sa.BigInteger(), nullable=True),
        sa.Column("sealed", sa.Text(), nullable=True),
        sa.Column("order_digest", sa.String(length=64), nullable=False),
        sa.Column("shop_account_digest", sa.String(length=64), nullable=False),
        sa.Column("first_page", sa.Boolean(), nullable=False),
        sa.Column("cost_nanos", sa.BigInteger(), nullable=False),
        sa.Column("product", sa.JSON(), nullable=True),
        sa.Column("total_nanos", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.JSON(), nullable=True),
        sa.Column("error", sa.JSON(), nullable=True),
        sa.Column("holder", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("quantity > 0", name="ck_purchases_quantity"),
        sa.CheckConstraint("total_nanos >= 0", name="ck_purchases_total"),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("purchases", schema=None) as batch_op:
        batch_op.create_index(
            "ix_purchases_account_id_order_digest", ["account_id", "order_digest"], unique=False
        )
        batch_op.create_index("ix_purchases_status_lease_until", ["status", "lease_until"], unique=False)
        batch_op.create_index("ix_purchases_wallet_id_status", ["wallet_id", "status"], unique=False)
        batch_op.create_index(
            "uq_purchases_shop_account_at_work",
            ["shop_account_digest"],
            unique=True,
            sqlite_where=sa.text("status IN ('running', 'submitting')"),
            postgresql_where=sa.text("status IN ('running', 'submitting')"),
        )


def downgrade() -> None:
    """Go back."""
    with op.batch_alter_table("purchases", schema=None) as batch_op:
        batch_op.drop_index(
            "uq_purchases_shop_account_at_work",
            sqlite_where=sa.text("status IN ('running', 'submitting')"),
            postgresql_where=sa.text("status IN ('running', 'submitting')"),
        )
        batch_op.drop_index("ix_purchases_wallet_id_status")
        batch_op.drop_index("ix_purchases_status_lease_until")
        batch_op.drop_index("ix_purchases_account_id_order_digest")

    op.drop_table("purchases")
    with op.batch_alter_table("purchase_steps", schema=None) as batch_op:
        batch_op.drop_index("ix_purchase_steps_purchase_id")

    op.drop_table("purchase_steps")
    with op.batch_alter_table("purchase_evidence", schema=None) as batch_op:
        batch_op.drop_index("ix_purchase_evidence_purchase_id")
        batch_op.drop_index("ix_purchase_evidence_created_at")

    op.drop_table("purchase_evidence")
    with op.batch_alter_table("purchase_events", schema=None) as batch_op:
        batch_op.drop_index("ix_purchase_events_purchase_id")

    op.drop_table("purchase_events")
