"""transactions.gas_fee_units and sponsored_days: transfers that the service submits, and their count

Revision: 0027; after: 0026
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the table; the wallets paid the network for all existing transfers."""
    if op.get_context().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '2s'")
    op.add_column("transactions", sa.Column("gas_fee_units", sa.Numeric(78, 0).with_variant(sa.String(80), "sqlite"), nullable=True))
    op.create_table(
        "sponsored_days",
        sa.Column("agent_id", sa.Uuid(as_uuid=False), nullable=False),
        sa.Column("day", sa.Date(), nullable=False),
        sa.Column("transfers", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("agent_id", "day"),
    )


def downgrade() -> None:
    """Drop both. The release before settles open transfers by their authorizations, like payments."""
    op.drop_table("sponsored_days")
    op.drop_column("transactions", "gas_fee_units")
