"""bridge: what a bridge has come to, and the transactions that it consists of

Revision: 0010; after: 0008
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_UNITS = sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite")
_OF_A_BRIDGE = sa.text("bridge_id IS NOT NULL")


def upgrade() -> None:
    """Add the table and the columns."""
    op.create_table(
        "bridges",
        sa.Column("id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("wallet_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("adapter", sa.String(length=20), nullable=False),
        sa.Column("route", sa.String(length=60), nullable=False),
        sa.Column("destination_chain", sa.String(length=20), nullable=False),
        sa.Column("stage", sa.String(length=12), nullable=False),
        sa.Column("fee_units", _UNITS, nullable=False),
        sa.Column("terms", sa.JSON(), nullable=False),
        sa.Column("proof", sa.JSON(), nullable=False),
        sa.Column("attested_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("received_units", _UNITS, nullable=True),
        sa.Column("arrival_hash", sa.String(length=100), nullable=True),
        sa.Column("arrival_block", sa.BigInteger(), nullable=True),
        sa.Column("arrival_block_hash", sa.String(length=100), nullable=True),
        sa.Column("arrival_takes_slot", sa.Boolean(), nullable=False),
        sa.Column("next_step_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_bridges_due", "bridges", ["next_step_at"])
    op.create_index("ix_bridges_wallet_id", "bridges", ["wallet_id"])
    op.add_column("transactions", sa.Column("bridge_id", sa.Uuid(as_uuid=False), nullable=True))
    op.add_column("transactions", sa.Column("leg", sa.String(length=12), nullable=True))
    op.create_index(
        "ix_transactions_bridge",
        "transactions",
        ["bridge_id"],
        postgresql_where=_OF_A_BRIDGE,
        sqlite_where=_OF_A_BRIDGE,
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_index("ix_transactions_bridge", table_name="transactions")
    op.drop_column("transactions", "leg")
    op.drop_column("transactions", "bridge_id")
    op.drop_table("bridges")
