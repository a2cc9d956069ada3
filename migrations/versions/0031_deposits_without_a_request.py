"""Deposits without a funding request: when a wallet was last used, and a scan position per tier of wallets.

Revision: 0031; after: 0030
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)
_SERVICE_AGENT = "00000000-0000-4000-8000-000000000402"


def upgrade() -> None:
    """Add the columns and the tiers. Present wallets are scanned from their first scan after this on."""
    with op.batch_alter_table("wallets") as batch:
        batch.add_column(sa.Column("active_at", _TIME, nullable=True))
        batch.add_column(sa.Column("new_to_scans", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index("ix_wallets_active_at", "wallets", ["active_at"])
    op.create_table(
        "deposit_cursors_by_tier",
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("tier", sa.String(10), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.String(100), nullable=True),
        sa.PrimaryKeyConstraint("chain", "tier"),
    )
    op.execute(
        "INSERT INTO deposit_cursors_by_tier (chain, tier, block_number, block_hash) "
        "SELECT chain, 'open', block_number, block_hash FROM deposit_cursors"
    )
    op.drop_table("deposit_cursors")
    op.rename_table("deposit_cursors_by_tier", "deposit_cursors")
    service = sa.bindparam("service", _SERVICE_AGENT, type_=sa.Uuid(as_uuid=False))
    op.get_bind().execute(
        sa.text("UPDATE wallets SET active_at = CURRENT_TIMESTAMP WHERE agent_id <> :service").bindparams(service)
    )


def downgrade() -> None:
    """Restore the table with the positions of scans for open requests, and drop the columns."""
    op.create_table(
        "deposit_cursors_by_chain",
        sa.Column("chain", sa.String(20), nullable=False),
        sa.Column("block_number", sa.BigInteger(), nullable=True),
        sa.Column("block_hash", sa.String(100), nullable=True),
        sa.PrimaryKeyConstraint("chain"),
    )
    op.execute(
        "INSERT INTO deposit_cursors_by_chain (chain, block_number, block_hash) "
        "SELECT chain, block_number, block_hash FROM deposit_cursors WHERE tier = 'open'"
    )
    op.drop_table("deposit_cursors")
    op.rename_table("deposit_cursors_by_chain", "deposit_cursors")
    op.drop_index("ix_wallets_active_at", "wallets")
    with op.batch_alter_table("wallets") as batch:
        batch.drop_column("new_to_scans")
        batch.drop_column("active_at")
