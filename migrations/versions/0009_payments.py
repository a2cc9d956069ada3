"""payments: payments per request, their claims, the wallets of the service's own, top-ups

Revision: 0009; after: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_UNITS = sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite")


def upgrade() -> None:
    """Create the tables."""
    op.create_table(
        "payments",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("rail", sa.String(10), nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("payer", sa.String(64), nullable=True),
        sa.Column("units", _UNITS, nullable=False),
        sa.Column("required_units", _UNITS, nullable=False),
        sa.Column("provider", sa.String(100), nullable=False),
        sa.Column("fingerprint", sa.String(64), nullable=False),
        sa.Column("signed", sa.Boolean(), nullable=False),
        sa.Column("status", sa.String(10), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("tx_hash", sa.String(100), nullable=True),
        sa.Column("transaction_id", sa.Uuid(as_uuid=False), nullable=True),
        sa.Column("recipient", sa.String(64), nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("paid_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("served_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint("tries >= 0", name="ck_payments_tries"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_payments_open", "payments", ["status", "created_at"])
    op.create_table(
        "payment_claims",
        sa.Column("key", sa.String(160), nullable=False),
        sa.Column("holder_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("claimed_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_index("ix_payment_claims_holder_id", "payment_claims", ["holder_id"])
    op.create_table(
        "payment_wallets",
        sa.Column("role", sa.String(20), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.PrimaryKeyConstraint("role"),
    )
    op.create_table(
        "topups",
        sa.Column("transaction_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("account_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("recipient", sa.String(64), nullable=False),
        sa.Column("units", _UNITS, nullable=False),
        sa.Column("granted_nanos", _UNITS, nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("closed_at", sa.DateTime(timezone=True), nullable=True),
        sa.ForeignKeyConstraint(["account_id"], ["credit_accounts.id"]),
        sa.PrimaryKeyConstraint("transaction_id"),
    )
    op.create_index("ix_topups_open", "topups", ["chain", "closed_at"])
    op.create_index("ix_topups_wallet_id", "topups", ["wallet_id"])


def downgrade() -> None:
    """Drop the tables. What was claimed is forgotten with them."""
    for table in ("topups", "payment_wallets", "payment_claims", "payments"):
        op.drop_table(table)
